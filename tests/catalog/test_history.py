import pytest

from tests.catalog.world import RUN
from weightsync.catalog import commits
from weightsync.errors import Corrupt, Denied, NotFound
from weightsync.format.envelope import Envelope, seal
from weightsync.format.moves import Move
from weightsync.store.memory_faults import Fault


def log_key(world, sequence: int) -> str:
    return next(
        key.removeprefix(f"{RUN}/")
        for key in (stat.key for stat in world.store.list(f"{RUN}/channels/latest/log/"))
        if key.rpartition("/")[2].startswith(f"{sequence}-")
    )


def rewritten(world, sequence: int, **changes) -> None:
    """Replaces a log record by another well-formed one."""
    key = log_key(world, sequence)
    move = Move.from_envelope(Envelope.parse(world.data(key), key), run=RUN, channel="latest")
    world.overwrite(key, seal(Move(**{**vars(move), **changes}).to_body()).data)


def test_history_is_the_newest_first(world):
    world.publish(3)
    catalog = world.catalog()
    moves = [move for move, _ in catalog.history(catalog.head())]
    assert [(m.sequence, m.version, m.why) for m in moves] == [
        (4, 3, "publish step 30"),
        (3, 2, "publish step 20"),
        (2, 1, "publish step 10"),
        (1, 0, "claim"),
    ]


def test_the_log_must_hold_the_head_too(world):
    world.publish(2)
    catalog = world.catalog()
    catalog.check_logged(catalog.head())
    key = log_key(world, 3)
    world.overwrite(key, world.data(key)[:-1])
    with pytest.raises(Corrupt, match=key):
        world.catalog().check_logged(catalog.head())
    world.delete(key)
    with pytest.raises(Corrupt, match="missing"):
        world.catalog().check_logged(catalog.head())


def test_history_reads_only_what_is_asked_for_and_nothing_twice(world):
    world.publish(5)
    catalog = world.catalog()
    head, before = catalog.head(), world.reads()
    walk = catalog.history(head)
    next(walk)
    assert world.reads() == before
    next(walk)
    assert world.reads() == before + 1
    assert len(list(catalog.history(head, down_to=3))) == 4
    assert world.reads() == before + 3
    assert len(list(catalog.history(head))) == 6
    assert len(list(catalog.history(head))) == 6
    assert world.reads() == before + 5


def test_finding_a_version_reads_no_further_than_it_must(world):
    world.publish(6)
    catalog, before = world.catalog(), world.reads()
    assert catalog.find(5).version == 5
    assert world.reads() == before + 2  # the head and one record
    with pytest.raises(NotFound):
        catalog.find(7)
    assert world.reads() == before + 3


def test_a_void_number_was_never_committed(world):
    claim = world.publish(1)
    world.staged(world.catalog(), claim)
    world.commit(world.catalog(), claim)
    assert [ref.version for ref in world.catalog().committed()] == [1, 3]
    with pytest.raises(NotFound, match="version 2"):
        world.catalog().find(2)


def claimed(world, count):
    """A long history: one version, then `count` claims."""
    world.publish(1)
    for _ in range(count):
        world.catalog().claim("trainer")
    before = len(world.store.log)
    return lambda name: sum(operation.name == name for operation in world.store.log[before:])


def test_a_long_history_is_read_ahead_in_parallel(world):
    count = claimed(world, 340)
    catalog = world.catalog()
    assert [m.sequence for m, _ in catalog.history(catalog.head())] == list(range(342, 0, -1))
    assert count("list") == 3  # 300 to 333, the two hundreds below; the last 99 are read one by one
    assert count("get") == 342
    assert len(catalog.committed()) == 1


def test_reading_ahead_is_only_a_hint(world, monkeypatch):
    """Forged, foreign and broken records in the log change nothing, nor does a store that cannot list."""
    claimed(world, 150)
    catalog = world.catalog()
    expected = list(catalog.history(catalog.head()))
    forged = next(move for move, _ in expected if move.sequence == 120)
    world.overwrite("channels/latest/log/120-" + "0" * 16, seal(Move(**{**vars(forged), "who": "mallory"}).to_body()).data)
    world.overwrite("channels/latest/log/121-" + "0" * 16, b"junk")
    world.overwrite("channels/latest/log/junk", b"junk")
    assert list(world.catalog().history(catalog.head())) == expected
    monkeypatch.setattr(world.store, "list", _denied)
    assert list(world.catalog().history(catalog.head())) == expected


def test_a_record_missing_far_back_is_named_all_the_same(world):
    claimed(world, 150)
    key = log_key(world, 110)
    world.delete(key)
    with pytest.raises(Corrupt, match=key):
        world.catalog().committed()


def _denied(*_):
    raise Denied("no")


def test_a_missing_log_record_is_corrupt_and_named(world):
    world.publish(3)
    key = log_key(world, 2)
    world.delete(key)
    catalog = world.catalog()
    assert len(list(catalog.history(catalog.head(), down_to=3))) == 2
    with pytest.raises(Corrupt, match=f"history of channel 'latest' breaks.*{key}.*missing.*restore"):
        list(catalog.history(catalog.head()))
    with pytest.raises(Corrupt, match=key):
        catalog.committed()


def test_a_log_record_that_lags_behind_is_waited_for(world):
    world.publish(3)
    world.store.inject(Fault.UNAVAILABLE, operation="get", key="log/2-")
    catalog = world.catalog()
    assert len(catalog.committed()) == 3
    assert world.clock.sleeps_s


@pytest.mark.parametrize("damage", [b"", b"junk", b"{}"])
def test_a_log_record_that_is_no_record_is_named(world, damage):
    world.publish(3)
    key = log_key(world, 2)
    world.overwrite(key, damage)
    with pytest.raises(Corrupt, match=key):
        world.catalog().committed()


@pytest.mark.parametrize("changes", [{"version": 1, "why": "forged"}, {"who": "mallory"}, {"created_ms": 1}, {"write_id": "0" * 16}])
def test_a_forged_log_record_is_refused(world, changes):
    """Well formed, in the right place, and not what its successor names."""
    world.publish(3)
    rewritten(world, 2, **changes)
    with pytest.raises(Corrupt, match=f"{log_key(world, 2)}.*is not the move that its successor names"):
        world.catalog().committed()


@pytest.mark.parametrize("changes", [{"epoch": 9}, {"highest": 9}])
def test_a_chain_that_goes_back_is_refused(world, changes):
    """A forger with the key could sign such a chain; its epochs or versions still give it away."""
    world.publish(2)
    head = world.catalog().head()
    older = next(m for m, _ in world.catalog().history(head) if m.sequence == 2)
    forged = seal(Move(**{**vars(older), **changes}).to_body())
    world.overwrite(f"channels/latest/log/2-{older.write_id}", forged.data)
    newer = Move(**{**vars(head.move), "previous": type(head.move.previous)(2, older.write_id, forged.digest)})
    world.overwrite("channels/latest/head", seal(newer.to_body()).data)
    with pytest.raises(Corrupt, match="goes back behind move 2"):
        world.catalog().committed()


def test_a_version_with_two_manifests_is_refused(world):
    world.publish(2)
    head = world.catalog().head()
    other = type(head.move.manifest)("0" * 64, 1)
    forged = Move(**{**vars(head.move), "version": 1, "manifest": other})
    world.overwrite("channels/latest/head", seal(forged.to_body()).data)
    with pytest.raises(Corrupt, match="version 1 of run 'run' was committed with two manifests"):
        world.catalog().committed()


def moved(sequence, version, highest):
    return Move("run", "latest", sequence, 1, version, highest, None, None, "0" * 16, "me", "", 0)


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], []),
        ([(1, 0, 0)], []),  # a claim
        ([(1, 0, 0), (2, 1, 1), (3, 2, 2)], [2, 1]),
        ([(1, 0, 0), (2, 1, 1), (3, 1, 1), (4, 2, 2)], [2, 1]),  # another publisher claims in between
        ([(1, 0, 0), (2, 1, 1), (3, 2, 2), (4, 1, 2), (5, 3, 3)], [3, 2, 1]),  # rolled back to 1, then 3
        ([(1, 0, 0), (2, 1, 1), (3, 2, 2), (4, 1, 2), (5, 2, 2)], [2, 1]),  # rolled back, and forward again
        ([(3, 2, 2), (4, 5, 5)], [5, 2]),  # what is older is gone; numbers in between are void
    ],
)
def test_moves_that_committed(moves, expected):
    newest_first = [moved(*one) for one in reversed(moves)]
    assert [one.version for one in commits(newest_first)] == expected
