"""Killed at any point, a replica is exactly what it was or what it was to become, and goes on from there."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.replica import children
from tests.replica.world import World, chain, frames_between, image_bytes, table_of
from weightsync import failpoints
from weightsync.clock import SYSTEM
from weightsync.errors import WeightsyncError
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor, make_layout
from weightsync.format.refs import VersionRef
from weightsync.replica.fetch import ShardSource
from weightsync.replica.journal import Journal
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.store.memory import MemoryStore

POINTS = sorted(name for name in failpoints.POINTS if name.startswith("subscribe.") and name.split(".")[1] in {
    "before_fetch", "fetched", "journal_open", "mid_apply", "applied", "before_mark", "marked",
})  # fmt: skip
KILLED = -9


def bring(world: World, path: Path, *versions: int, threads: int = 1) -> None:
    with Replica(path, threads=threads) as replica:
        for version in versions:
            update(replica, world.catalog, world.records[version], ShardSource(world.catalog))


def held(world: World, path: Path, *allowed: int | None) -> int | None:
    """The version held after a restart, which must be one of `allowed`, byte for byte; then the newest is reached."""
    with Replica(path, threads=1) as replica:
        version = replica.version.version if replica.version else None
        assert version in allowed, replica.doubt
        if version is not None:
            assert bytes(replica.image.data) == world.image(version)
            assert replica.version == world.records[version].ref
        newest = max(world.records)
        update(replica, world.catalog, world.records[newest], ShardSource(world.catalog))
        assert bytes(replica.image.data) == world.image(newest)
        assert sorted(p.name.split("-")[0] for p in path.iterdir()) == ["image", "layout", "lock", "readers", "state", "table"]
    return version


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_delta(world, place, point, nth, threads):
    bring(world, place / "r", 1)
    code = children.run(lambda: bring(world, place / "r", 2, 4, threads=threads), f"{point}=kill@{nth}")
    assert code == KILLED
    # The second pass through these comes with the second update; the others are passed several times in the first.
    second = nth == 2 and point.split(".")[1] in {"before_fetch", "journal_open", "applied", "before_mark", "marked"}
    expected = {(False, False): 1, (True, False): 2, (False, True): 2, (True, True): 4}[second, point == "subscribe.marked"]
    assert held(world, place / "r", expected) == expected


@pytest.mark.parametrize("point", sorted({*POINTS} - {"subscribe.journal_open", "subscribe.mid_apply"}))
@pytest.mark.parametrize("start", [None, 2])
def test_snapshot(world, place, point, start):
    if start:
        bring(world, place / "r", start)
    code = children.run(lambda: bring(world, place / "r", 1), f"{point}=kill")
    assert code == KILLED
    expected = 1 if point == "subscribe.marked" else start
    assert held(world, place / "r", expected) == expected


def test_at_random_moments(place):
    tensors = [Tensor(f"t{n}", DTYPES["BF16"], (1 << 16,)) for n in range(12)]
    world = chain(MemoryStore(), 5, layout=make_layout(tensors, chunk_lanes=1 << 14))

    def forever() -> None:
        with Replica(place / "r", threads=2) as replica:
            while True:
                for version in (1, 2, 3, 5):
                    update(replica, world.catalog, world.records[version], ShardSource(world.catalog))

    rng = np.random.default_rng(20)
    journals = seconds = 0
    found = set()
    for number in range(400):  # where the kills fall depends on how busy the machine is
        if number >= 25 and journals >= 3 and seconds >= 1 and len(found) >= 3:
            break
        child = children.start(forever)
        SYSTEM.sleep_s(float(rng.uniform(0.0, 0.09)))
        children.kill(child)
        left = {p.name for p in (place / "r").iterdir()} if (place / "r").exists() else set()
        journals += "journal" in left
        seconds += sum(name.startswith("image-") for name in left) > 1
        found.add(held(world, place / "r", None, 1, 2, 3, 5))
    # The campaign counts only if it hit updates in their middle.
    assert journals >= 3
    assert seconds >= 1
    assert len(found) >= 3


SMALL = make_layout([Tensor("a", DTYPES["BF16"], (40,)), Tensor("b", DTYPES["F32"], (3,)), Tensor("c", DTYPES["U8"], (90,))])
BEFORE = {"a": bytes(range(80)), "b": bytes(12), "c": bytes(90)}
AFTER = {"a": bytes([*range(10), 77, *range(11, 80)]), "b": b"\1" + bytes(11), "c": bytes(range(90))}
ONE, TWO = VersionRef(1, "1" * 64), VersionRef(2, "2" * 64)
ALL = frames_between(SMALL, BEFORE, AFTER)
OLD, NEW = image_bytes(SMALL, BEFORE), image_bytes(SMALL, AFTER)


def interrupted(path: Path) -> None:
    """A directory whose writer was killed after all chunks were written and before the mark."""
    with Replica(path, threads=1) as replica, replica.begin(ONE, SMALL, table_of(SMALL, BEFORE)) as transition:
        for chunk in SMALL.chunks:
            transition.fill(chunk.number, OLD[chunk.offset : chunk.offset + chunk.nbytes])
        transition.finish()

    def work() -> None:
        with Replica(path, threads=1) as replica, replica.begin(TWO, SMALL, table_of(SMALL, AFTER)) as transition:
            for number, frame in ALL:
                transition.apply(number, frame)
            transition.finish()

    assert children.run(work, "subscribe.before_mark=kill") == KILLED
    assert next(path.glob("image-*")).read_bytes() == NEW


def reopened(path: Path) -> bytes | None:
    with Replica(path, threads=1) as replica:
        if replica.version is None:
            assert replica.doubt
            return None
        assert replica.version == ONE
        assert not (path / "journal").exists()
        return bytes(replica.image.data)


def copies(path: Path, place: Path, count: int):
    for number in range(count):
        copy = place / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        copy.chmod(0o700)
        yield number, copy


def record_ends(path: Path) -> list[int]:
    with Replica(path, threads=1) as replica:
        image = replica.image
        directory = replica._directory
        (path / "journal").write_bytes((path.parent / "journal").read_bytes())
        (path / "journal").chmod(0o600)
        journal = Journal.open(directory)
        assert journal is not None
        ends = [record.start + record.nbytes + 16 for record in journal._records(image)]
        journal.discard()
    return ends


def test_a_journal_cut_at_any_byte(place):
    """Cut there, with the chunks written that such a journal allows: back to the old version, always. With more written: never wrong."""
    path = place / "r"
    interrupted(path)
    journal = (path / "journal").read_bytes()
    (place / "journal").write_bytes(journal)
    shutil.copytree(path, place / "probe")
    (place / "probe").chmod(0o700)
    ends = record_ends(place / "probe")
    assert len(ends) == len(ALL) == 3
    assert ends[-1] == len(journal)
    image = next(path.glob("image-*")).name
    for size, copy in copies(path, place, len(journal) + 1):
        (copy / "journal").write_bytes(journal[:size])
        assert reopened(copy) == (OLD if size == len(journal) else None)
    for size, copy in copies(path, place, len(journal) + 1):
        (copy / "journal").write_bytes(journal[:size])
        data = bytearray(OLD)
        for (number, _), end in zip(ALL, ends, strict=True):
            chunk = SMALL.chunks[number]
            if end <= size:
                data[chunk.offset : chunk.offset + chunk.nbytes] = NEW[chunk.offset : chunk.offset + chunk.nbytes]
        (copy / image).write_bytes(data)
        assert reopened(copy) == OLD


def test_a_journal_with_any_bit_flipped(place):
    path = place / "r"
    interrupted(path)
    journal = (path / "journal").read_bytes()
    outcomes = {reopened_flipped(copy, journal, position) for position, copy in copies(path, place, 8 * len(journal))}
    assert outcomes == {None}  # each record is needed here, and each is noticed


def reopened_flipped(copy: Path, journal: bytes, position: int) -> bytes | None:
    data = bytearray(journal)
    data[position // 8] ^= 1 << position % 8
    (copy / "journal").write_bytes(data)
    return reopened(copy)


def test_a_journal_of_a_finished_update_is_dropped(place):
    path = place / "r"
    interrupted(path)
    state, journal = (path / "state").read_bytes(), (path / "journal").read_bytes()
    assert reopened(path) == OLD
    with Replica(path, threads=1) as replica, replica.begin(TWO, SMALL, table_of(SMALL, AFTER)) as transition:
        for number, frame in ALL:
            transition.apply(number, frame)
        transition.finish()
    assert (path / "state").read_bytes() != state
    (path / "journal").write_bytes(journal)
    (path / "journal").chmod(0o600)
    with Replica(path, threads=1) as replica:
        assert replica.version == TWO
        assert bytes(replica.image.data) == NEW
    assert not (path / "journal").exists()


def test_a_kill_while_rolling_back(place):
    path = place / "r"
    interrupted(path)
    # Half rolled back: one chunk is the old one again, the journal still there.
    image = next(path.glob("image-*"))
    chunk = SMALL.chunks[2]
    data = bytearray(NEW)
    data[chunk.offset : chunk.offset + chunk.nbytes] = OLD[chunk.offset : chunk.offset + chunk.nbytes]
    image.write_bytes(data)
    assert reopened(path) == OLD


@pytest.mark.parametrize("point", POINTS)
def test_a_failing_point_keeps_the_old_version(world, place, point, monkeypatch):
    bring(world, place / "r", 1)
    with Replica(place / "r", threads=1) as replica:
        monkeypatch.setattr(failpoints, "_armed", failpoints.parse(f"{point}=raise:EIO"))
        marked = point == "subscribe.marked"
        try:
            update(replica, world.catalog, world.records[4], ShardSource(world.catalog))
        except WeightsyncError:
            assert not marked
        else:
            assert marked
        assert replica.version == world.records[4 if marked else 1].ref
        assert bytes(replica.image.data) == world.image(4 if marked else 1)
        left = sorted(p.name.split("-")[0] for p in (place / "r").iterdir())
        assert marked or left == ["image", "layout", "lock", "readers", "state", "table"]
        monkeypatch.setattr(failpoints, "_armed", {})
    assert held(world, place / "r", 1, 4) == (4 if marked else 1)
