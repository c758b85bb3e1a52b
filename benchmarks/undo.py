"""Going back several versions on this host, without the network, against downloading the weights again.

    python -m benchmarks.undo --size 1GB --back 5 --output benchmarks/results/undo.json

A subscriber follows a run step by step and goes back. Beside the wall time, the processor's: on a busy machine that is what to compare.
"""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.large_model import LargeModel
from benchmarks.measure import circumstances
from benchmarks.units import parse_size
from weightsync.catalog import Catalog
from weightsync.publisher.additions import AdditionSettings
from weightsync.publisher.commit import Settings
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.snapshots import SnapshotPolicy
from weightsync.replica.fetch import ShardSource
from weightsync.replica.past import PastLimits
from weightsync.replica.replica import Replica
from weightsync.replica.update import Update, update
from weightsync.store.open import open_store

GIGABIT_BYTES_S = 125e6
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What `work` gives, and its seconds by the clock and by the processor, all threads."""
    wall, cpu = time.monotonic(), time.process_time()
    found = work()
    return found, {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}


def measure(place: Path, nbytes: int, back: int, repeats: int) -> dict[str, Any]:
    """Follow `back` + 1 versions, then go back and forth `repeats` times."""
    catalog, model = Catalog(open_store(f"file://{place / 'store'}"), "run"), LargeModel(nbytes)
    settings = Settings(chunking=model.chunking, additions=AdditionSettings((), SnapshotPolicy(every=0)))
    follows: list[dict[str, float]] = []
    remembers: list[dict[str, float]] = []
    with Replica(place / "image", past=PastLimits()) as replica:

        def go(version: int) -> Update:
            return update(replica, catalog, catalog.manifest_of(version), ShardSource(catalog))

        with Publisher(catalog, Replica(place / "base"), ShardSource(catalog), who="benchmark", settings=settings) as publisher:
            for number in range(1, back + 2):
                if number > 1:
                    model.step()
                published = publisher.publish(model, step=number)
                if number == 1:
                    snapshot_bytes = published.payload_bytes
                _, took = timed(lambda number=number: go(number))
                follows.append(took)
                remembers.append(timed(replica.remember)[1])
        shutil.rmtree(place / "base")
        kept = replica.past.nbytes
        backs, forths = [], []
        for _ in range(repeats):
            done, took = timed(lambda: go(1))
            assert done.bytes_fetched == 0
            backs.append(took)
            done, took = timed(lambda: go(back + 1))
            assert done.bytes_fetched == 0
            forths.append(took)
    again_s = snapshot_bytes / GIGABIT_BYTES_S
    best = min(took["wall_s"] for took in backs)
    return {
        "model_bytes": model.layout.nbytes,
        "back": back,
        "changed_lanes_share": 0.0114,
        "kept_bytes": kept,
        "kept_share": kept / model.layout.nbytes,
        "snapshot_bytes": snapshot_bytes,
        "download_again_s": again_s,
        "back_s": backs,
        "forth_s": forths,
        "follow_s": follows[1:],
        "remember_s": remembers[1:],
        "best_share_of_download": best / again_s,
        "best_share_of_raw_download": best / (model.layout.nbytes / GIGABIT_BYTES_S),
        "cpu_share_of_download": min(took["cpu_s"] for took in backs) / again_s,
    }


def main(
    size: Annotated[str, typer.Option(help="Bytes of the model.")] = "1GB",
    back: int = 5,
    repeats: int = 3,
    output: Path | None = None,
) -> None:
    """Follow, then go back."""
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with TemporaryDirectory(prefix="weightsync-undo-", dir=parent) as name:
        found = measure(Path(name), parse_size(size), back, repeats)
    text = json.dumps({**circumstances(), **found}, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    typer.run(main)
