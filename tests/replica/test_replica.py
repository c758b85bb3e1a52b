"""Transitions: in place or into a second image, finished or gone back."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.replica.world import frames_between, image_bytes, random_weights, sample_layout, step, table_of
from weightsync.errors import Conflict, Corrupt, Invalid, WeightsyncError
from weightsync.format.digests import DigestTable
from weightsync.format.layout import Layout, make_layout
from weightsync.format.refs import VersionRef
from weightsync.format.root import root_digest
from weightsync.replica.locks import ReadersLock
from weightsync.replica.replica import Replica

LAYOUT = sample_layout()
OLD = random_weights(LAYOUT, 1)
NEW = step(LAYOUT, OLD, 2)
OLD_TABLE, NEW_TABLE = table_of(LAYOUT, OLD), table_of(LAYOUT, NEW)
FRAMES = frames_between(LAYOUT, OLD, NEW)
ONE, TWO, THREE = (VersionRef(n, f"{n:064x}") for n in (1, 2, 3))


def fill(replica: Replica, layout: Layout = LAYOUT, weights=OLD, table: DigestTable = OLD_TABLE, ref: VersionRef = ONE) -> None:
    data = image_bytes(layout, weights)
    with replica.begin(ref, layout, table, fresh=True) as transition:
        for chunk in layout.chunks:
            transition.fill(chunk.number, data[chunk.offset : chunk.offset + chunk.nbytes])
        transition.finish()


@pytest.fixture
def replica(place):
    with Replica(place / "r", threads=1) as found:
        fill(found)
        yield found


def names(replica: Replica) -> list[str]:
    return sorted(p.name.split("-")[0] for p in replica.path.iterdir())


def check(replica: Replica, ref: VersionRef, weights) -> None:
    assert replica.version == ref
    assert bytes(replica.image.data) == image_bytes(LAYOUT, weights)
    assert replica.verify() == []
    assert names(replica) == ["image", "layout", "lock", "readers", "state", "table"]


def test_starts_with_nothing(place):
    with Replica(place / "r") as replica:
        found = (replica.version, replica.layout, replica.table, replica.root, replica.doubt)
        assert found == (
            None,
            None,
            None,
            None,
            "nothing was there",
        )
        with pytest.raises(Invalid, match="holds no version: nothing was there"):
            _ = replica.image


def test_a_first_fill_that_is_given_up_leaves_nothing(place):
    with Replica(place / "r") as replica:
        with replica.begin(ONE, LAYOUT, OLD_TABLE) as transition:
            transition.apply(*frames_between(LAYOUT, None, OLD)[0])
        assert (replica.version, replica.doubt) == (None, "nothing was there")
        assert names(replica) == ["lock", "readers"]


def test_a_filled_image_is_held_and_survives_closing(place):
    with Replica(place / "r") as replica:
        fill(replica)
        check(replica, ONE, OLD)
        assert replica.root == root_digest(LAYOUT, OLD_TABLE.leaves)
    with Replica(place / "r") as replica:
        check(replica, ONE, OLD)
        assert replica.doubt == ""
        assert replica.table is not None
        assert (replica.table.sums == OLD_TABLE.sums).all()


def test_in_place(replica):
    view = replica.image.tensor("model.embed")
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
        assert transition.in_place
        for number, frame in FRAMES:
            transition.apply(number, frame)
        assert replica.version == ONE
        transition.finish()
    check(replica, TWO, NEW)
    assert bytes(view) == NEW["model.embed"] == bytes(replica.image.tensor("lm_head"))


def test_in_place_with_whole_chunks(replica):
    data = image_bytes(LAYOUT, NEW)
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
        for number, _ in FRAMES:
            chunk = LAYOUT.chunks[number]
            transition.fill(number, data[chunk.offset : chunk.offset + chunk.nbytes])
        transition.abort()
    check(replica, ONE, OLD)
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
        for number, frame in frames_between(LAYOUT, None, NEW):
            transition.apply(number, frame)
        transition.finish()
    check(replica, TWO, NEW)


def test_from_many_threads(replica):
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pair: transition.apply(*pair), FRAMES))
        transition.finish()
    check(replica, TWO, NEW)
    with replica.begin(ONE, LAYOUT, OLD_TABLE) as transition, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pair: transition.apply(*pair), frames_between(LAYOUT, NEW, OLD)))
    check(replica, TWO, NEW)


def test_leaving_without_finish_goes_back(replica):
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
        for number, frame in FRAMES:
            transition.apply(number, frame)
        assert bytes(replica.image.data) == image_bytes(LAYOUT, NEW)
    check(replica, ONE, OLD)
    transition.abort()
    with pytest.raises(Invalid, match="ended"):
        transition.apply(*FRAMES[0])
    with pytest.raises(Invalid, match="ended"):
        transition.finish()


def test_several_steps_are_one_transition(replica):
    third = step(LAYOUT, NEW, 3)
    third_table = table_of(LAYOUT, third)
    for finish in (False, True):
        with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
            for number, frame in FRAMES:
                transition.apply(number, frame)
            transition.advance(THREE, third_table)
            for number, frame in frames_between(LAYOUT, NEW, third):
                transition.apply(number, frame)
            if finish:
                transition.finish()
        check(replica, *((THREE, third) if finish else (ONE, OLD)))


def test_an_incomplete_step_does_not_advance(replica):
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
        for number, frame in FRAMES[1:]:
            transition.apply(number, frame)
        with pytest.raises(Corrupt, match=f"version 2: no frame came for chunk {FRAMES[0][0]}"):
            transition.advance(THREE, OLD_TABLE)
        with pytest.raises(Invalid):
            transition.finish()
    check(replica, ONE, OLD)


def test_an_unchanged_version_is_only_a_mark(replica):
    with replica.begin(TWO, LAYOUT, OLD_TABLE) as transition:
        transition.finish()
    check(replica, TWO, OLD)


def test_who_makes_the_version_aims_later(replica):
    with replica.begin(None, LAYOUT, None) as transition:
        for number, frame in FRAMES:
            transition.apply(number, frame, NEW_TABLE.leaf(LAYOUT, number))
        with pytest.raises(Invalid, match="leads nowhere yet"):
            transition.finish()
        transition.aim(TWO, NEW_TABLE)
        transition.finish()
    check(replica, TWO, NEW)


@pytest.mark.parametrize("leaf", [None, bytes(16)])
def test_without_a_table_every_leaf_must_be_given_and_right(replica, leaf):
    with replica.begin(None, LAYOUT, None) as transition, pytest.raises(Corrupt, match="leaf"):
        transition.apply(*FRAMES[0], leaf)
    check(replica, ONE, OLD)


def test_another_layout_is_a_second_image(replica):
    other = make_layout(LAYOUT.tensors[:5], chunk_lanes=2048)
    weights = random_weights(other, 9)
    table = table_of(other, weights)
    held = replica.image
    with replica.begin(TWO, other, table) as transition:
        assert not transition.in_place
        for number, frame in frames_between(other, None, weights)[:-1]:
            transition.apply(number, frame)
        assert replica.image is held
        assert names(replica).count("image") == 2
        with pytest.raises(Corrupt, match="no frame came"):
            transition.finish()
    check(replica, ONE, OLD)
    with replica.begin(TWO, other, table) as transition:
        for number, frame in frames_between(other, None, weights):
            transition.apply(number, frame)
        transition.finish()
    assert bytes(replica.image.data) == image_bytes(other, weights)
    assert names(replica) == ["image", "layout", "lock", "readers", "state", "table"]
    assert replica.layout == other


def test_a_snapshot_cannot_need_a_base(replica):
    with replica.begin(TWO, LAYOUT, NEW_TABLE, fresh=True) as transition, pytest.raises(Corrupt, match="needs a base"):
        transition.apply(*FRAMES[0])


def test_an_empty_layout(place):
    empty = make_layout([])
    table = table_of(empty, {})
    with Replica(place / "r") as replica:
        with replica.begin(ONE, empty, table) as transition:
            transition.finish()
        assert bytes(replica.image.data) == b""
    with Replica(place / "r") as replica:
        assert replica.version == ONE


BAD = {
    "cut frame": lambda number, frame: (number, frame[:-1]),
    "no frame": lambda number, frame: (number, b""),
    "another chunk's": lambda number, frame: (number, FRAMES[-1][1]),
    "unknown codec": lambda number, frame: (number, b"\x63" + frame[1:]),
    "chunk beyond": lambda number, frame: (len(LAYOUT.chunks), frame),
    "chunk below": lambda number, frame: (-1, frame),
}


@pytest.mark.parametrize("damage", BAD.values(), ids=BAD.keys())
def test_bad_frames_are_refused_and_undone(replica, damage):
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
        for number, frame in FRAMES[3:]:
            transition.apply(number, frame)
        with pytest.raises(Corrupt):
            transition.apply(*damage(*FRAMES[0]))
        with pytest.raises(Invalid, match="failed"):
            transition.apply(*FRAMES[1])
        with pytest.raises(Invalid, match="failed"):
            transition.finish()
    check(replica, ONE, OLD)


def test_no_flipped_bit_of_a_frame_makes_other_weights(replica):
    number, frame = min(FRAMES, key=lambda pair: len(pair[1]))
    refused = 0
    for position in range(8 * len(frame)):
        data = bytearray(frame)
        data[position // 8] ^= 1 << position % 8
        with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
            try:
                transition.apply(number, bytes(data))
            except WeightsyncError:
                refused += 1
            else:
                assert bytes(replica.image.chunk(number)) == image_bytes(LAYOUT, NEW)[slice_of(number)]
    assert refused > 7 * len(frame)
    check(replica, ONE, OLD)


def slice_of(number: int) -> slice:
    chunk = LAYOUT.chunks[number]
    return slice(chunk.offset, chunk.offset + chunk.nbytes)


def test_a_chunk_comes_once(replica):
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
        transition.apply(*FRAMES[0])
        with pytest.raises(Corrupt, match="came twice"):
            transition.apply(*FRAMES[0])
    check(replica, ONE, OLD)


def test_one_transition_at_a_time(replica):
    with replica.begin(TWO, LAYOUT, NEW_TABLE):
        with pytest.raises(Invalid, match="already on its way"):
            replica.begin(THREE, LAYOUT, NEW_TABLE)
        with pytest.raises(Invalid, match="on its way"):
            replica.forget("no reason")


def test_closing_goes_back(place):
    with Replica(place / "r") as replica:
        fill(replica)
        replica.begin(TWO, LAYOUT, NEW_TABLE).apply(*FRAMES[0])
    with Replica(place / "r") as replica:
        check(replica, ONE, OLD)


def test_forgetting_frees_the_space(replica):
    replica.forget("a test")
    assert (replica.version, replica.doubt) == (None, "a test")
    assert names(replica) == ["lock", "readers"]
    fill(replica)
    check(replica, ONE, OLD)


def test_memory_that_changed_by_itself_is_not_gone_back_to(replica):
    position = LAYOUT.chunks[FRAMES[0][0]].offset
    transition = replica.begin(TWO, LAYOUT, NEW_TABLE)
    transition.apply(*FRAMES[0])
    replica.image.data[position] ^= 0x10
    with pytest.raises(Corrupt, match="did not go back"):
        transition.abort()
    assert replica.version is None
    assert "rolling back failed" in replica.doubt


def test_scrubbing_finds_what_changed(replica):
    replica.image.data[LAYOUT.chunks[4].offset] ^= 1
    assert replica.verify() == [4]


def test_one_writer(place):
    with Replica(place / "r"), pytest.raises(Conflict, match=f"in use by process {os.getpid()}"):
        Replica(place / "r")
    Replica(place / "r").close()


def test_readers_are_waited_for(replica):
    directory = replica._directory
    lock = ReadersLock(directory, replica._place.readers._clock)
    lock.acquire(exclusive=False, wait_s=0)
    release = threading.Timer(0.1, lock.close)
    release.start()
    with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition:
        transition.apply(*FRAMES[0])
        assert not release.is_alive() or release.finished.is_set()
    release.join()
    check(replica, ONE, OLD)


def test_readers_that_stay_are_an_error(place):
    with Replica(place / "r", readers_wait_s=0.05) as replica:
        fill(replica)
        lock = ReadersLock(replica._directory, replica._place.readers._clock)
        lock.acquire(exclusive=False, wait_s=0)
        with replica.begin(TWO, LAYOUT, NEW_TABLE) as transition, pytest.raises(Conflict, match="a reader has held"):
            transition.apply(*FRAMES[0])
        lock.close()
        check(replica, ONE, OLD)


def test_other_files_in_the_directory_stay(place):
    path = place / "r"
    path.mkdir(mode=0o700)
    (path / "notes.txt").write_text("mine")
    with Replica(path) as replica:
        fill(replica)
        replica.forget("x")
    assert (path / "notes.txt").read_text() == "mine"


def test_left_over_images_are_removed(place):
    path = place / "r"
    with Replica(path) as replica:
        fill(replica)
    for name in ("image-0123456789abcdef", "table-" + "0" * 64, ".new-0123456789abcdef"):
        (path / name).write_bytes(b"left over")
    with Replica(path) as replica:
        check(replica, ONE, OLD)


def test_views_may_outlive_the_image(place):
    with Replica(place / "r") as replica:
        fill(replica)
        view = replica.image.tensor("model.embed")
    assert bytes(view) == OLD["model.embed"]


def test_directory_mode(place):
    path = Path(place / "deep" / "r")
    Replica(path).close()
    assert path.stat().st_mode & 0o777 == 0o700
