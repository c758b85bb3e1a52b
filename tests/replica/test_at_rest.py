"""What lies on disk or in shared memory is doubted: flipped bits, planted files, full file systems."""

import errno
import os
import resource
import shutil
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.replica import children
from tests.replica.test_kill import bring, held
from tests.replica.world import World, chain, random_weights, sample_layout
from weightsync.errors import Denied, Invalid, NoSpace, Unavailable, WeightsyncError
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor, make_layout
from weightsync.replica.cache import ObjectCache
from weightsync.replica.fetch import ShardSource
from weightsync.replica.journal import Journal
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.store.memory import MemoryStore


def part(path: Path, prefix: str) -> Path:
    return next(p for p in path.iterdir() if p.name.startswith(prefix))


def doubt(path: Path) -> str:
    with Replica(path, threads=1) as replica:
        assert replica.version is None
        assert sorted(p.name for p in path.iterdir()) == ["lock", "readers"]
        return replica.doubt


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position // 8] ^= 1 << position % 8
    path.write_bytes(data)


def test_any_bit_of_the_image(world, place):
    layout = sample_layout()
    rng = np.random.default_rng(3)
    bring(world, place / "r", 2)
    for _ in range(60):
        chunk = layout.chunks[rng.integers(len(layout.chunks))]
        shutil.copytree(place / "r", place / "copy")
        flip(part(place / "copy", "image-"), 8 * chunk.offset + int(rng.integers(8 * chunk.nbytes)))
        name = layout.tensors[chunk.tensor].name
        assert f"1 chunks of the image changed since they were verified, the first is chunk {chunk.number} (tensor {name!r}" in doubt(
            place / "copy"
        )
        shutil.rmtree(place / "copy")


@pytest.mark.parametrize("prefix", ["state", "table-", "layout-"])
def test_any_bit_of_the_records(world, place, prefix):
    bring(world, place / "r", 2)
    size = 8 * part(place / "r", prefix).stat().st_size
    for position in range(0, size, max(1, size // 150) | 1):
        shutil.copytree(place / "r", place / "copy")
        flip(part(place / "copy", prefix), position)
        assert doubt(place / "copy")
        shutil.rmtree(place / "copy")


@pytest.mark.parametrize("prefix", ["state", "table-", "layout-", "image-"])
@pytest.mark.parametrize("size", [0, 100, 1 << 20])
def test_cut_grown_and_missing_files(world, place, prefix, size):
    bring(world, place / "r", 2)
    os.truncate(part(place / "r", prefix), size)
    assert doubt(place / "r")
    bring(world, place / "r", 2)
    part(place / "r", prefix).unlink()
    assert doubt(place / "r")


def test_what_was_lost_is_rebuilt_from_the_cache_without_the_store(world, place):
    cache = ObjectCache(place / "cache", 1 << 30)
    with Replica(place / "r", threads=1) as replica:
        update(replica, world.catalog, world.records[3], ShardSource(world.catalog, cache))
    flip(part(place / "r", "image-"), 8 * 64)
    for version in (1, 2, 3):
        for key in world.shard_keys(version):
            world.store.delete(key)
    with Replica(place / "r", threads=1) as replica:
        assert replica.version is None
        done = update(replica, world.catalog, world.records[3], ShardSource(world.catalog, cache))
        assert bytes(replica.image.data) == world.image(3)
    assert done.bytes_fetched == 0
    assert done.bytes_cached > 0


def test_stored_state_swapped_for_another_ones(world, place):
    """State, table and layout are whole, but not this image's."""
    bring(world, place / "r", 1)
    bring(world, place / "s", 2)
    image = part(place / "r", "image-")
    for name in ("state", "table-"):
        shutil.copy(part(place / "s", name), place / "r" / part(place / "s", name).name)
    image.rename(place / "r" / part(place / "s", "image-").name)
    assert "changed since they were verified" in doubt(place / "r")


# ------------------------------------------------------------------------------------------------------------- planted files

FILES = ["state", "journal", "lock", "readers", "image-", "table-", "layout-"]


def planted(world: World, path: Path, name: str) -> Path:
    """Where to plant something instead of the file `name`; what stood there is moved outside."""
    bring(world, path, 2)
    found = next((p for p in path.iterdir() if p.name.startswith(name)), path / name)
    if found.exists():
        found.rename(path.parent / "outside")
    else:
        (path.parent / "outside").write_bytes(b"")
    return found


def refused(path: Path) -> None:
    with pytest.raises((Denied, Invalid)):
        Replica(path, threads=1)


@pytest.mark.parametrize("name", FILES)
def test_a_symbolic_link(world, place, name):
    at = planted(world, place / "r", name)
    at.symlink_to(place / "outside")
    before = (place / "outside").read_bytes()
    refused(place / "r")
    assert (place / "outside").read_bytes() == before


@pytest.mark.parametrize("name", FILES)
def test_a_dangling_symbolic_link(world, place, name):
    at = planted(world, place / "r", name)
    at.symlink_to(place / "nowhere")
    refused(place / "r")
    assert not (place / "nowhere").exists()


@pytest.mark.parametrize("name", FILES)
def test_a_second_name(world, place, name):
    at = planted(world, place / "r", name)
    os.link(place / "outside", at)
    refused(place / "r")


@pytest.mark.parametrize("name", FILES)
def test_a_fifo(world, place, name):
    os.mkfifo(planted(world, place / "r", name), 0o600)
    refused(place / "r")


@pytest.mark.parametrize("name", FILES)
def test_a_directory(world, place, name):
    planted(world, place / "r", name).mkdir()
    refused(place / "r")


@pytest.mark.parametrize("name", FILES)
def test_a_socket(world, place, name):
    at = planted(world, place / "r", name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(at))
        refused(place / "r")


@pytest.mark.parametrize("name", FILES)
def test_writable_by_others(world, place, name):
    at = planted(world, place / "r", name)
    at.write_bytes((place / "outside").read_bytes())
    at.chmod(0o666)
    refused(place / "r")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", FILES)
def test_of_another_user(world, place, name):
    at = planted(world, place / "r", name)
    at.write_bytes((place / "outside").read_bytes())
    os.chown(at, 12345, 12345)
    refused(place / "r")


def test_the_directory_itself(place):
    (place / "real").mkdir(mode=0o700)
    (place / "link").symlink_to(place / "real")
    (place / "file").write_bytes(b"")
    (place / "open").mkdir()
    (place / "open").chmod(0o770)
    os.mkfifo(place / "fifo")
    for name in ("link", "file", "open", "fifo"):
        refused(place / name)
    (place / "shown").mkdir(mode=0o755)
    Replica(place / "shown").close()
    assert (place / "shown").stat().st_mode & 0o777 == 0o700


# ------------------------------------------------------------------------------------------------------------------ no space

BIG = make_layout([Tensor("w", DTYPES["BF16"], (200_000,)), Tensor("v", DTYPES["BF16"], (200_000,))], chunk_lanes=1 << 14)


def big_chain() -> World:
    world = World(MemoryStore())
    world.publish(BIG, random_weights(BIG, 1))
    world.publish(BIG, random_weights(BIG, 2))  # everything changes: the journal is as large as the image
    return world


def limit_files(nbytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def test_no_room_for_the_image(place):
    world = big_chain()

    def work() -> None:
        limit_files(100_000)
        with Replica(place / "r", threads=2) as replica:
            with pytest.raises(NoSpace, match="no room for the image of 800000 bytes"):
                update(replica, world.catalog, world.records[1], ShardSource(world.catalog))
            assert replica.version is None
            assert sorted(p.name for p in (place / "r").iterdir()) == ["lock", "readers"]

    assert children.run(work) == 0
    assert held(world, place / "r", None) is None


def test_a_layout_that_no_host_could_hold(world, place):
    """64 TiB: refused for its size before its millions of chunks are counted out."""
    huge = make_layout([Tensor("w", DTYPES["BF16"], (1 << 45,))], chunk_lanes=1 << 20)
    bring(world, place / "r", 1)
    with Replica(place / "r", threads=1) as replica:
        with pytest.raises(NoSpace, match="no room for the image of 70368744177664 bytes"):
            replica.begin(world.records[2].ref, huge, None)
        assert bytes(replica.image.data) == world.image(1)
    assert held(world, place / "r", 1) == 1


def test_no_room_for_the_journal(place):
    world = big_chain()
    bring(world, place / "r", 1)
    for limit in (10, 50_000, 400_000, 800_000):

        def work(limit: int = limit) -> None:
            with Replica(place / "r", threads=2) as replica:
                limit_files(limit)
                with pytest.raises(NoSpace):
                    update(replica, world.catalog, world.records[2], ShardSource(world.catalog))
                assert replica.version == world.records[1].ref
                assert bytes(replica.image.data) == world.image(1)
                assert replica.verify() == []
                assert not (place / "r" / "journal").exists()

        assert children.run(work) == 0
    assert held(world, place / "r", 1) == 1


def test_after_a_failed_write_the_journal_takes_no_more(world, place):
    """A record written behind half a record would never be found again: the chunk must not be touched."""
    bring(world, place / "r", 1)

    def work() -> None:
        with Replica(place / "r", threads=1) as replica:
            journal = Journal.create(replica._directory, "0" * 64)
            journal.append_whole(0, replica.image.chunk(0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (journal_size() + 100, resource.RLIM_INFINITY))
            with pytest.raises(NoSpace):
                journal.append_whole(1, replica.image.chunk(1))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            with pytest.raises(NoSpace, match="before this chunk"):
                journal.append_whole(2, replica.image.chunk(2))
            assert journal.undo(replica.image) == {0}

    def journal_size() -> int:
        return (place / "r" / "journal").stat().st_size

    assert children.run(work) == 0


def test_no_room_for_the_mark(world, place):
    bring(world, place / "r", 1)

    def work() -> None:
        with Replica(place / "r", threads=1) as replica:
            limit_files(700)  # the journal's records fit, the table does not
            with pytest.raises(NoSpace):
                update(replica, world.catalog, world.records[2], ShardSource(world.catalog))
            assert replica.version == world.records[1].ref
            assert bytes(replica.image.data) == world.image(1)

    assert children.run(work) == 0
    assert held(world, place / "r", 1) == 1


@pytest.fixture
def small_tmpfs(tmp_path):
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1200k,mode=700", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("cannot mount a file system here")
    yield mounted
    subprocess.run(["umount", "-l", mounted], check=True)


def test_a_full_file_system(small_tmpfs):
    """Room for one image: no second one, no whole journal; and once there is room again it goes on."""
    world = big_chain()
    path = small_tmpfs / "r"
    bring(world, path, 1)
    for _ in range(2):
        with Replica(path, threads=2) as replica:
            with pytest.raises(NoSpace):
                update(replica, world.catalog, world.records[2], ShardSource(world.catalog))
            assert bytes(replica.image.data) == world.image(1)
        assert sorted(p.name.split("-")[0] for p in path.iterdir()) == ["image", "layout", "lock", "readers", "state", "table"]

    def second_image() -> None:
        with Replica(path, threads=1) as replica, pytest.raises(NoSpace, match="no room for the image"):
            replica.begin(world.records[2].ref, BIG, None, fresh=True).fill(0, bytes(BIG.chunks[0].nbytes))

    assert children.run(second_image) == 0  # and not killed by SIGBUS
    subprocess.run(["mount", "-o", "remount,size=4m", small_tmpfs], check=True)
    bring(world, path, 2)
    assert held(world, path, 2) == 2


@pytest.mark.parametrize("nth", [0, 1])
def test_a_sync_that_fails_is_not_believed(world, place, monkeypatch, nth):
    bring(world, place / "r", 1)
    calls = iter(range(100))
    real = os.fdatasync

    def fails(fd: int) -> None:
        if next(calls) == nth:
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    with Replica(place / "r", threads=1) as replica:
        monkeypatch.setattr(os, "fdatasync", fails)
        with pytest.raises(Unavailable, match="Input/output error"):
            update(replica, world.catalog, world.records[2], ShardSource(world.catalog))
        assert replica.version == world.records[1].ref
        assert bytes(replica.image.data) == world.image(1)
        assert len(list((place / "r").iterdir())) == 6
    assert held(world, place / "r", 1) == 1


def test_a_cache_without_room_only_keeps_less(world, place):
    def work() -> None:
        limit_files(3000)
        cache = ObjectCache(place / "cache", 1 << 30)
        source = ShardSource(world.catalog, cache)
        payload = world.catalog.payload(world.records[1], 0, world.claim.writer)
        assert sum(len(data) for _, data in source.shards(payload)) == payload.nbytes
        assert 0 < cache.nbytes < payload.nbytes
        assert not list((place / "cache").glob(".new-*"))

    assert children.run(work) == 0


def test_errors_are_ours(place):
    (place / "file").write_bytes(b"")
    with pytest.raises(WeightsyncError):
        Replica(place / "file" / "below")
    assert chain(MemoryStore(), 1).records
