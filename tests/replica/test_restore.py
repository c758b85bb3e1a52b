"""Back to files, byte for byte; and looking for damage in a store or a directory."""

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.replica import children
from tests.replica.test_at_rest import limit_files
from tests.replica.test_update import fold, snapshot
from tests.replica.world import World, frames_between, random_weights, sample_layout, step, table_of, tree
from weightsync.catalog import Catalog
from weightsync.errors import Conflict, Corrupt, Invalid, NoSpace, Unavailable, WeightsyncError
from weightsync.format.digests import DigestTable
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor, make_layout
from weightsync.format.safetensors import Header, make_header, parse_header
from weightsync.replica.cache import ObjectCache
from weightsync.replica.fetch import ShardSource
from weightsync.replica.readers import open_image_readonly
from weightsync.replica.replica import Replica
from weightsync.replica.restore import restore, restore_version
from weightsync.replica.update import update
from weightsync.replica.verify import Finding, verify_directory, verify_image, verify_records, verify_version
from weightsync.store.memory import MemoryStore

LAYOUT = sample_layout()
SMALL_FILES = {"config.json": b'{"model_type": "qwen3"}', "tokenizer/vocab.txt": b"", "model.safetensors.index.json": b"{}"}


def headers() -> dict[str, Header]:
    """Three files: tensors against the alphabet, padding, metadata, a tied tensor under both its names, one file without tensors."""
    by_name = {tensor.name: tensor for tensor in LAYOUT.tensors}
    order = sorted(by_name, reverse=True)
    tied = Tensor("lm_head", by_name["model.embed"].dtype, by_name["model.embed"].shape)
    first = make_header([*(by_name[name] for name in order[::2]), tied], {"format": "pt", "made_by": "test"})
    padded = first.raw[8:] + b" " * 24
    first = parse_header(len(padded).to_bytes(8, "little") + padded, None, "x")
    return {
        "model-00001-of-00003.safetensors": first,
        "model-00002-of-00003.safetensors": make_header([by_name[name] for name in order[1::2]]),
        "sub/model-00003-of-00003.safetensors": make_header([], {}),
    }


def published(weights, small=SMALL_FILES) -> dict[str, bytes]:
    """The files as they were before publishing."""
    found = dict(small)
    for name, header in headers().items():
        found[name] = header.raw + b"".join(weights[LAYOUT.tensors[LAYOUT.index[e.name]].name] for e in header.entries)
    return found


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def files_world():
    world = World(MemoryStore())
    weights = random_weights(LAYOUT, 1)
    for seed in (2, 3):
        world.publish(LAYOUT, weights, small=SMALL_FILES, headers=headers())
        weights = step(LAYOUT, weights, seed)
    return world


@pytest.fixture
def replica(files_world, place):
    with Replica(place / "r", threads=1) as found:
        update(found, files_world.catalog, files_world.records[2], ShardSource(files_world.catalog))
        yield found


def test_files_are_byte_identical(files_world, replica, tmp_path):
    progress: list[tuple[int, int]] = []
    done = restore(files_world.catalog, files_world.records[2], replica, tmp_path / "deep" / "out", progress=lambda *p: progress.append(p))
    expected = published(files_world.weights[2])
    assert tree(tmp_path / "deep" / "out") == expected
    assert names(tmp_path / "deep") == ["out"]
    total = sum(len(data) for data in expected.values())
    assert (done.files, done.nbytes) == (len(expected), total)
    assert progress[-1] == (total, total)
    assert progress == sorted(progress)


@pytest.mark.parametrize("memory", [False, True])
def test_from_the_store_alone(files_world, place, tmp_path, memory):
    progress: list[tuple[int, int]] = []
    for version in (1, 2):
        out = tmp_path / f"v{version}"
        workdir = place / "work" if memory else None
        restore_version(
            files_world.catalog,
            files_world.records[version],
            out,
            ShardSource(files_world.catalog),
            workdir=workdir,
            threads=1,
            progress=lambda *p: progress.append(p),
        )
        assert tree(out) == published(files_world.weights[version])
        assert progress[-1][0] == progress[-1][1]
    assert names(tmp_path) == ["v1", "v2"]
    assert not memory or names(place / "work") == []


def test_a_state_dict_becomes_one_file_that_loaders_read(world, place, tmp_path):
    restore_version(world.catalog, world.records[3], tmp_path / "out", ShardSource(world.catalog))
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    header = parse_header(data[:size], len(data), "x")
    assert header.metadata == {"format": "pt"}
    stored = {e.name: data[size + e.begin : size + e.end] for e in header.entries}
    assert stored == {**world.weights[3], "lm_head": world.weights[3]["model.embed"]}
    assert all(e.begin % e.dtype.lane_bytes == 0 for e in header.entries)


def test_the_usual_library_loads_it(place, tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    layout = make_layout(
        [Tensor("w", DTYPES["BF16"], (20, 30)), Tensor("s", DTYPES["F32"], ()), Tensor("none", DTYPES["F16"], (0, 2))], [("t", "w")]
    )
    world = World(MemoryStore())
    weights = random_weights(layout, 5)
    world.publish(layout, weights)
    restore_version(world.catalog, world.records[1], tmp_path / "out", ShardSource(world.catalog))
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    assert set(loaded) == {"w", "s", "none", "t"}
    assert loaded["w"].view(torch.uint8).numpy().tobytes() == weights["w"] == loaded["t"].view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("taken", ["file", "directory", "link", "dangling link"])
def test_nothing_is_overwritten(files_world, replica, tmp_path, taken):
    out = tmp_path / "out"
    if taken == "directory":
        out.mkdir()
    if taken in ("file", "directory"):
        (out / "mine" if taken == "directory" else out).write_bytes(b"precious")
    if "link" in taken:
        (tmp_path / "target").mkdir()
        out.symlink_to(tmp_path / ("target" if taken == "link" else "nowhere"))
    before = names(tmp_path)
    for call in (
        lambda: restore(files_world.catalog, files_world.records[2], replica, out),
        lambda: restore_version(files_world.catalog, files_world.records[2], out, ShardSource(files_world.catalog)),
    ):
        with pytest.raises(Invalid, match="exists and is not an empty directory"):
            call()
    assert names(tmp_path) == before


def test_two_that_make_the_same_directory_at_once(files_world, replica, tmp_path, monkeypatch):
    def taken(fd: int, operation: int) -> None:
        raise BlockingIOError

    monkeypatch.setattr("weightsync.replica.restore.fcntl.flock", taken)
    with pytest.raises(Conflict, match="another process"):
        restore(files_world.catalog, files_world.records[2], replica, tmp_path / "out")
    assert list(tmp_path.glob("*out*")) == []


def test_an_empty_directory_is_taken(files_world, replica, tmp_path):
    (tmp_path / "out").mkdir()
    restore(files_world.catalog, files_world.records[2], replica, tmp_path / "out")
    assert tree(tmp_path / "out") == published(files_world.weights[2])


def test_the_replica_must_hold_the_version(files_world, replica, tmp_path):
    with pytest.raises(Invalid, match="does not hold version 1"):
        restore(files_world.catalog, files_world.records[1], replica, tmp_path / "out")
    assert names(tmp_path) == []


def test_memory_that_changed_is_not_written_out(files_world, replica, tmp_path):
    replica.image.data[LAYOUT.chunks[5].offset] ^= 1
    with pytest.raises(Corrupt, match=r"chunk 5 .* changed in memory"):
        restore(files_world.catalog, files_world.records[2], replica, tmp_path / "out")
    assert names(tmp_path) == []


def test_a_full_disk_leaves_nothing(files_world, replica, tmp_path):
    def work() -> None:
        limit_files(5000)
        with pytest.raises(NoSpace):
            restore(files_world.catalog, files_world.records[2], replica, tmp_path / "out")
        assert names(tmp_path) == []

    assert children.run(work) == 0


def test_space_is_looked_at_first(files_world, replica, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 10, 0))
    for call in (
        lambda: restore(files_world.catalog, files_world.records[2], replica, tmp_path / "out"),
        lambda: restore_version(files_world.catalog, files_world.records[2], tmp_path / "out", ShardSource(files_world.catalog)),
    ):
        with pytest.raises(NoSpace, match="0 are free"):
            call()
    assert names(tmp_path) == []


def test_what_a_killed_restore_left_is_removed_by_the_next(files_world, replica, tmp_path):
    started = threading.Event()

    def work() -> None:
        def die(done: int, total: int) -> None:
            os.kill(os.getpid(), 9)

        restore(files_world.catalog, files_world.records[2], replica, tmp_path / "out", progress=die)

    assert children.run(work) == -9
    assert len(names(tmp_path)) == 1

    def second(done: int, total: int) -> None:
        # A running one is left alone by another.
        if not started.is_set():
            started.set()
            restore(files_world.catalog, files_world.records[2], replica, tmp_path / "other")

    restore(files_world.catalog, files_world.records[2], replica, tmp_path / "out", progress=second)
    assert names(tmp_path) == ["other", "out"]


BAD_HEADERS = {
    "a tensor that is not there": [Tensor("ghost", DTYPES["U8"], (1,))],
    "another shape": [Tensor("a.scale", DTYPES["F32"], (1,))],
    "another type": [Tensor("a.scale", DTYPES["I32"], ())],
    "tensors in no file": [LAYOUT.tensors[0]],
}


@pytest.mark.parametrize("tensors", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_headers_that_contradict_the_layout(place, tmp_path, tensors):
    world = World(MemoryStore())
    world.publish(LAYOUT, random_weights(LAYOUT, 1), headers={"m.safetensors": make_header(tensors)})
    with pytest.raises(Corrupt, match="tensor '"):
        restore_version(world.catalog, world.records[1], tmp_path / "out", ShardSource(world.catalog))
    assert names(tmp_path) == []


# ------------------------------------------------------------------------------------------------------------------ verify


def findings(world: World, place, version: int) -> list[Finding]:
    with Replica(place / "v", threads=1) as replica:
        return list(verify_version(world.catalog, world.records[version], replica))


def test_a_whole_store_is_without_findings(files_world, place):
    snapshot(files_world, 2)
    progress: list[tuple[int, int]] = []
    with Replica(place / "v", threads=1) as replica:
        for version in (1, 2):
            found = verify_version(files_world.catalog, files_world.records[version], replica, progress=lambda *p: progress.append(p))
            assert list(found) == []
    assert progress


def test_damage_anywhere_is_found(files_world, place):
    """Every object that only this version needs, flipped, cut and missing."""
    fold(files_world, 2, 1)
    snapshot(files_world, 2)
    keys = [stat.key for stat in files_world.store.list("r/")]
    parts = ("-2-", "/files/", "/digests/1-2/", "/layouts/", "/versions/2/payloads/1-1")
    needed = [key for key in keys if any(part in key for part in parts)]
    assert len(needed) > 8
    for key in needed:
        good = files_world.store.get(key, max_bytes=1 << 24).data
        for bad in (bytes([*good[:-1], good[-1] ^ 1]) if good else b"!", good[:-1] if good else b"!!", None):
            if bad is None:
                files_world.store.delete(key)
            else:
                files_world.store.put(key, bad)
            files_world.catalog = Catalog(files_world.store, "r")  # remembers no layout
            assert findings(files_world, place, 2), key
        files_world.store.put(key, good)
    assert findings(files_world, place, 2) == []


def test_an_outage_is_no_finding(files_world, place):
    class Down:
        url = "mem://down"

        def read_into(self, key, into, *, start=0):
            raise Unavailable("the store does not answer")

        def get(self, key, *, max_bytes):
            raise Unavailable("the store does not answer")

    files_world.catalog.layout(files_world.records[2].manifest.layout)
    catalog = Catalog(Down(), "r")
    with Replica(place / "v", threads=1) as replica, pytest.raises(Unavailable, match="does not answer"):
        list(verify_version(catalog, files_world.records[2], replica))


def test_sums_that_are_wrong_are_found(place):
    world = World(MemoryStore())
    weights = random_weights(LAYOUT, 1)
    table = table_of(LAYOUT, weights)
    sums = table.sums.copy()
    sums[LAYOUT.index["model.embed"]] += 1
    world.publish(LAYOUT, weights, table=DigestTable(table.leaves, sums))
    assert [(f.kind, f.what) for f in findings(world, place, 1)] == [("corrupt", "tensor 'model.embed'")]


def test_frames_that_lead_elsewhere_are_found(place):
    world = World(MemoryStore())
    weights = random_weights(LAYOUT, 1)
    frames = frames_between(LAYOUT, None, step(LAYOUT, weights, 2, 0.5))
    world.publish(LAYOUT, weights, frames=frames)
    found = findings(world, place, 1)
    assert found
    assert all(f.kind == "corrupt" for f in found)
    assert "leaf" in found[0].message


# -------------------------------------------------------------------------------------------------------- verify a directory


@pytest.fixture
def restored(files_world, replica, tmp_path):
    restore(files_world.catalog, files_world.records[2], replica, tmp_path / "out")
    return tmp_path / "out"


def compare(world: World, directory, version: int = 2) -> list[Finding]:
    return list(verify_directory(world.catalog, world.records[version], directory))


def test_a_restored_directory_is_without_findings(files_world, restored):
    assert compare(files_world, restored) == []
    (restored / "README.md").write_text("ours")
    assert compare(files_world, restored) == []
    assert {f.kind for f in compare(files_world, restored, 1)} == {"corrupt"}


def test_any_changed_byte_of_a_directory_is_found(files_world, restored):
    for path in sorted(p for p in restored.rglob("*") if p.is_file()):
        good = path.read_bytes()
        for position in {0, 9, len(good) // 3, len(good) // 2, len(good) - 1} & set(range(len(good))):
            path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
            assert compare(files_world, restored), (path, position)
        for bad in (good + b"\0", good[:-1]) if good else (b"x",):
            path.write_bytes(bad)
            assert compare(files_world, restored), path
        path.unlink()
        assert [f.kind for f in compare(files_world, restored)] == ["not_found"]
        path.write_bytes(good)
    assert compare(files_world, restored) == []


def test_another_safetensors_file_is_found(files_world, restored):
    (restored / "more.safetensors").write_bytes(b"")
    assert [f.what for f in compare(files_world, restored)] == ["more.safetensors"]


def test_a_directory_for_a_state_dict_may_be_split_as_it_likes(world, tmp_path):
    weights = world.weights[4]
    half = len(LAYOUT.tensors) // 2
    for name, tensors in (("a", LAYOUT.tensors[:half]), ("b", LAYOUT.tensors[half:])):
        header = make_header(tensors)
        (tmp_path / f"{name}.safetensors").write_bytes(header.raw + b"".join(weights[t.name] for t in tensors))
    assert compare(world, tmp_path, 4) == []
    assert {f.kind for f in compare(world, tmp_path, 3)} == {"corrupt"}
    (tmp_path / "b.safetensors").unlink()
    assert len(compare(world, tmp_path, 4)) == len(LAYOUT.tensors) - half
    (tmp_path / "b.safetensors").write_bytes(b"junk")
    assert any("b.safetensors" in f.what for f in compare(world, tmp_path, 4))


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to("/dev/zero")]
)
def test_what_is_no_file_in_a_directory_for_a_state_dict_is_found(world, tmp_path, make):
    header = make_header(LAYOUT.tensors)
    (tmp_path / "a.safetensors").write_bytes(header.raw + b"".join(world.weights[4][t.name] for t in LAYOUT.tensors))
    make(tmp_path / "z.safetensors")
    assert [f.what for f in compare(world, tmp_path, 4)] == ["z.safetensors"]


def test_a_shard_that_has_grown_is_found(files_world, place):
    key = files_world.shard_keys(2)[0]
    files_world.store.put(key, files_world.store.get(key, max_bytes=1 << 20).data + b"more")
    with Replica(place) as replica:
        found = list(verify_version(files_world.catalog, files_world.records[2], replica))
    assert [(f.kind, f.what) for f in found] == [("corrupt", key)]


def test_not_a_directory(world, tmp_path):
    with pytest.raises(Invalid):
        compare(world, tmp_path / "nothing", 1)
    assert issubclass(Invalid, WeightsyncError)


def test_one_file_with_all_tensors(files_world, replica, tmp_path):
    out = tmp_path / "all.safetensors"
    done = restore(files_world.catalog, files_world.records[2], replica, out)
    data = out.read_bytes()
    assert (done.path, done.files, done.nbytes, names(tmp_path)) == (out, 1, len(data), ["all.safetensors"])
    header = parse_header(data[: 8 + int.from_bytes(data[:8], "little")], len(data), "all")
    wanted = {entry.name for file in headers().values() for entry in file.entries}
    assert (header.names, header.metadata) == (wanted, {"format": "pt", "made_by": "test"})
    for entry in header.entries:
        name = LAYOUT.tensors[LAYOUT.index[entry.name if entry.name in LAYOUT.index else "model.embed"]].name
        assert data[header.data_start + entry.begin : header.data_start + entry.end] == files_world.weights[2][name]
    assert compare(files_world, out) == []
    out.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert [found.kind for found in compare(files_world, out)] == ["corrupt"]


def test_one_file_is_never_overwritten(files_world, replica, tmp_path):
    out = tmp_path / "all.safetensors"
    out.write_bytes(b"mine")
    with pytest.raises(Invalid, match="exists"):
        restore(files_world.catalog, files_world.records[2], replica, out)

    out.unlink()

    def appears(done: int, total: int) -> None:
        if not out.exists():
            out.write_bytes(b"another's")

    with pytest.raises(Invalid, match="exists"):
        restore(files_world.catalog, files_world.records[2], replica, out, progress=appears)
    assert (out.read_bytes(), names(tmp_path)) == (b"another's", ["all.safetensors"])


def test_one_file_where_there_are_no_hard_links(files_world, replica, tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, "no hard links")

    monkeypatch.setattr("weightsync.replica.restore.os.link", refuse)
    out = tmp_path / "all.safetensors"
    done = restore(files_world.catalog, files_world.records[2], replica, out)
    assert (out.stat().st_size, names(tmp_path)) == (done.nbytes, ["all.safetensors"])
    assert compare(files_world, out) == []


def test_a_killed_restore_does_not_fetch_again_what_it_had(files_world, tmp_path):
    catalog, record = files_world.catalog, files_world.records[2]

    def source() -> ShardSource:
        return ShardSource(catalog, ObjectCache(tmp_path / "objects", 1 << 30), parallel=1)

    def work() -> None:
        def die(done: int, total: int) -> None:
            if any((tmp_path / "objects").iterdir()):
                os.kill(os.getpid(), 9)

        restore_version(catalog, record, tmp_path / "out", source(), progress=die)

    assert children.run(work) == -9
    kept = sum(path.stat().st_size for path in (tmp_path / "objects").iterdir())
    again = source()
    restore_version(catalog, record, tmp_path / "out", again)
    assert again.bytes_cached == kept > 0
    assert compare(files_world, tmp_path / "out") == []


def test_records_are_checked_without_reading_weights(files_world, place):
    store, record = files_world.store, files_world.records[2]
    assert list(verify_records(files_world.catalog, record)) == []
    (payload,) = files_world.catalog.payloads(record)
    key = files_world.catalog.keys.shard(payload.writer, 2, payload.base_version, payload.shards[0].digest)
    store.delete(key)
    (found,) = verify_records(files_world.catalog, record)
    assert (found.kind, found.what) == ("not_found", key)


def test_the_image_of_a_subscriber_is_compared_with_what_the_store_says(files_world, replica, place):
    catalog = files_world.catalog
    with open_image_readonly(place / "r") as reader:
        assert list(verify_image(catalog, files_world.records[2], reader, threads=2)) == []
        (found,) = verify_image(catalog, files_world.records[1], reader)
        assert "holds version 2, not version 1" in found.message
    replica.image.chunk(3)[0] ^= 1
    with open_image_readonly(place / "r") as reader:
        (found,) = verify_image(catalog, files_world.records[2], reader)
    assert (found.kind, found.what) == ("corrupt", "image")
