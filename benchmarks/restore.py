"""`restore` over a link of a given speed, against downloading the same bytes; and locally, against what memory and disk allow.

    python -m benchmarks.restore --size 400MB --rate 1gbit --output benchmarks/results/restore.json

The link is a network namespace behind a token bucket (root only; without the right it is left out). The download is that of the very
objects, by the same client with the same number of connections, and nothing done with them.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.large_model import LargeModel
from benchmarks.link import link
from benchmarks.measure import circumstances
from benchmarks.undo import timed
from benchmarks.units import parse_size
from weightsync.catalog import Catalog, VersionRecord
from weightsync.publisher.additions import AdditionSettings
from weightsync.publisher.commit import Settings
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.snapshots import SnapshotPolicy
from weightsync.replica.fetch import ShardSource
from weightsync.replica.path import find_path
from weightsync.replica.replica import Replica
from weightsync.replica.restore import Restored, restore_version
from weightsync.store.api import ObjectStore
from weightsync.store.open import open_store
from weightsync.testing.s3_server import seaweedfs

CONNECTIONS = 8
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def publish(store: ObjectStore, place: Path, nbytes: int, versions: int) -> VersionRecord:
    """A snapshot and deltas."""
    catalog, model = Catalog(store, "run"), LargeModel(nbytes)
    settings = Settings(chunking=model.chunking, additions=AdditionSettings((), SnapshotPolicy(every=0)))
    with Publisher(catalog, Replica(place / "base"), ShardSource(catalog), who="benchmark", settings=settings) as publisher:
        for number in range(versions):
            if number:
                model.step()
            publisher.publish(model)
    shutil.rmtree(place / "base")
    return catalog.manifest_of(versions)


def download(store: ObjectStore, record: VersionRecord) -> int:
    """Fetches all shards on the path, and throws them away."""
    catalog = Catalog(store, "run")
    steps = find_path(catalog, None, record).steps
    keys = [
        (catalog.keys.shard(step.writer, step.target.version, step.base_version, shard.digest), shard.nbytes)
        for step in steps
        for shard in step.shards
    ]

    def fetch(wanted: tuple[str, int]) -> None:
        store.read_into(wanted[0], memoryview(bytearray(wanted[1])))

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(fetch, keys))
    return sum(nbytes for _, nbytes in keys)


def restore(store: ObjectStore, record: VersionRecord, place: Path) -> Restored:
    """As the command does, rebuilding beside the output."""
    catalog = Catalog(store, "run")
    return restore_version(catalog, record, place / "out", ShardSource(catalog, parallel=CONNECTIONS), workdir=place)


def compare(store: ObjectStore, record: VersionRecord, place: Path, repeats: int) -> dict[str, Any]:
    """Downloads and restores in turn."""
    downloads, restores, nbytes = [], [], 0
    for _ in range(repeats):
        nbytes, took = timed(lambda: download(store, record))
        downloads.append(took)
        restored, took = timed(lambda: restore(store, record, place))
        restores.append(took)
        shutil.rmtree(place / "out")
    ratio = min(one["wall_s"] for one in restores) / min(one["wall_s"] for one in downloads)
    return {"bytes": nbytes, "restored_bytes": restored.nbytes, "download_s": downloads, "restore_s": restores, "ratio": ratio}


def limits(place: Path, nbytes: int) -> dict[str, float]:
    """Writing and syncing as many bytes where `restore` writes them: what the disk alone takes."""
    block, path = os.urandom(1 << 24), place / "probe"
    began = time.monotonic()
    with path.open("wb") as file:
        for _ in range(max(1, nbytes // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    took_s = time.monotonic() - began
    path.unlink()
    return {"write_and_sync_s": took_s}


def over_link(rate: str, nbytes: int, versions: int, repeats: int, place: Path) -> dict[str, Any]:
    """From an S3 server on the far side."""
    with link(rate) as far, seaweedfs(place, address=far.address, prefix=far.prefix) as server:
        os.environ.update(server.environment)
        store = open_store(server.url())
        found = compare(store, publish(store, place, nbytes, versions), place, repeats)
        store.close()
    return {"rate": rate, **found}


def local(nbytes: int, versions: int, repeats: int, out: Path, memory: Path) -> dict[str, Any]:
    """From a directory in memory: to memory, and to disk."""
    store = open_store(f"file://{memory / 'store'}")
    record = publish(store, memory, nbytes, versions)
    return {
        "to_memory": {**compare(store, record, memory, repeats), **limits(memory, nbytes)},
        "to_disk": {**compare(store, record, out, repeats), **limits(out, nbytes)},
    }


def main(
    size: Annotated[str, typer.Option(help="Bytes of the model.")] = "400MB",
    rate: str = "1gbit",
    versions: int = 4,
    repeats: int = 3,
    output: Path | None = None,
) -> None:
    """Download and restore, over a link and locally."""
    nbytes, parent = parse_size(size), SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    found: dict[str, Any] = {"chain_versions": versions}
    parts: dict[str, Callable[[Path, Path], Any]] = {
        "link": lambda memory, _: over_link(rate, nbytes, versions, repeats, memory),
        "local": lambda memory, disk: local(nbytes, versions, repeats, disk, memory),
    }
    for name, part in parts.items():
        with ExitStack() as stack:
            memory = Path(stack.enter_context(TemporaryDirectory(prefix="weightsync-restore-", dir=parent)))
            disk = Path(stack.enter_context(TemporaryDirectory(prefix="weightsync-restore-")))
            try:
                found[name] = part(memory, disk)
            except subprocess.CalledProcessError as error:
                found[name] = {"left_out": f"{error.cmd[:4]}: {error.stderr.decode(errors='replace').strip()}"}
    text = json.dumps({**circumstances(), **found}, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    typer.run(main)
