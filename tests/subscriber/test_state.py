from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync.catalog import Head
from weightsync.errors import Corrupt
from weightsync.format.limits import MAX_SEQUENCE_JUMP
from weightsync.format.moves import Move, MoveRef
from weightsync.subscriber.state import Accepted, AcceptedFile, check_order


def head(sequence, epoch=1, salt="0", channel="latest"):
    previous = MoveRef(sequence - 1, "0" * 16, f"{sequence - 1:063}{salt}") if sequence > 1 else None
    move = Move("run", channel, sequence, epoch, 0, 0, None, previous, "0" * 16, "me", "", 0)
    return Head(move, f"{sequence:063}{salt}", 100, "etag", None)


@pytest.mark.parametrize(
    ("accepted", "now", "word"),
    [
        ((5, 2, "x"), head(4, 2), "went back from sequence 5 to 4"),
        ((5, 2, "x"), head(5, 2), "another move 5"),
        ((5, 2, "x"), head(6, 1), "went back from epoch 2 to 1"),
        ((5, 2, "x"), head(6 + MAX_SEQUENCE_JUMP, 2), "jumped"),
        ((5, 2, "x"), head(2**53 - 1, 2), "jumped"),
    ],
)
def test_what_contradicts_the_accepted_move_is_refused(accepted, now, word):
    with pytest.raises(Corrupt, match=word):
        check_order(Accepted(*accepted), now)


def test_the_next_move_must_name_the_accepted_one():
    check_order(Accepted.of(head(5, salt="1")), head(6, salt="1"))
    with pytest.raises(Corrupt, match="follows another move 5"):
        check_order(Accepted.of(head(5, salt="2")), head(6, salt="1"))


def test_what_follows_is_accepted():
    first = head(5, 2)
    check_order(None, head(1))
    check_order(Accepted.of(first), first)
    check_order(Accepted.of(first), head(6, 2))
    check_order(Accepted.of(first), head(5 + MAX_SEQUENCE_JUMP, 3))


@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 20))
def test_replays_of_old_heads_are_never_accepted_restarts_included(seed, tmp_path_factory):
    draw = np.random.default_rng(seed)
    heads = [head(number, 1 + number // 7) for number in range(1, 40)]
    directory = tmp_path_factory.mktemp("accepted")
    file, newest = AcceptedFile(directory, "run", "latest"), 0
    for _ in range(60):
        if draw.random() < 0.2:
            file.close()
            file = AcceptedFile(directory, "run", "latest")
        found = heads[draw.integers(len(heads))]
        if found.move.sequence >= newest:
            file.accept(found)
            newest = found.move.sequence
        else:
            with pytest.raises(Corrupt):
                file.accept(found)
        assert file.value.sequence == newest
    file.close()


def test_it_is_kept_for_each_channel(tmp_path):
    one, two = AcceptedFile(tmp_path / "a", "run", "latest"), AcceptedFile(tmp_path / "a", "run", "serving")
    one.accept(head(7))
    assert two.value is None
    two.accept(head(3, channel="serving"))
    assert AcceptedFile(tmp_path / "a", "run", "latest").value == Accepted.of(head(7))


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other run", "other channel"])
def test_a_damaged_or_foreign_file_is_refused(tmp_path, damage):
    AcceptedFile(tmp_path / "a", "run", "latest").accept(head(7))
    path = tmp_path / "a" / "accepted-latest"
    data = bytearray(path.read_bytes())
    run, channel = "run", "latest"
    if damage == "flip":
        data[20] ^= 1
    elif damage == "cut":
        del data[-5:]
    elif damage == "empty":
        data.clear()
    elif damage == "other run":
        run = "other"
    else:
        channel = "serving"
        path.rename(tmp_path / "a" / "accepted-serving")
    if path.exists():
        path.write_bytes(data)
    with pytest.raises(Corrupt, match="accepted-"):
        AcceptedFile(tmp_path / "a", run, channel)


def test_the_same_move_renewed_writes_nothing(tmp_path):
    file = AcceptedFile(tmp_path / "a", "run", "latest")
    file.accept(head(7))
    before = (tmp_path / "a" / "accepted-latest").stat().st_ino
    file.accept(replace(head(7), expires_ms=5))
    assert (tmp_path / "a" / "accepted-latest").stat().st_ino == before
