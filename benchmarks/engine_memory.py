"""What a subscriber needs beside an engine: memory in shared files, in its own process, and in the engine's workers during a swap.

    python -m benchmarks.engine_memory --sizes 100MB,400MB,1GB --output benchmarks/results/engine_memory.json
    python -m benchmarks.engine_memory --small

An engine of two processes holds the model (`weightsync.testing.rank_engine`); a subscriber follows a run of RL steps (1.14 % of the lanes
changed) and swaps each into it. Sampled every few milliseconds, the highest of each: the image, the change file and the versions kept for
going back, all files in shared memory that every process maps; anonymous memory of the subscriber and of the workers over what they had
before the first swap.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from matplotlib import pyplot as plt

from benchmarks.large_model import LargeModel
from benchmarks.measure import circumstances
from benchmarks.units import parse_size
from weightsync.catalog import Catalog
from weightsync.engine.changes import Changes
from weightsync.engine.session import Swapper
from weightsync.publisher.additions import AdditionSettings
from weightsync.publisher.commit import Settings
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.snapshots import SnapshotPolicy
from weightsync.replica.fetch import ShardSource
from weightsync.replica.past import PastLimits
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.store.open import open_store
from weightsync.testing.rank_engine import RankEngine

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
POLL_S = 0.003
FILES = {"image": "image-", "change": "change-", "past": "past-", "tables": "table-"}


def publish(place: Path, nbytes: int, versions: int) -> None:
    """All versions, in a process of their own so that its memory is not counted."""
    catalog, model = Catalog(open_store(f"file://{place / 'store'}"), "run"), LargeModel(nbytes)
    settings = Settings(chunking=model.chunking, additions=AdditionSettings((), SnapshotPolicy(every=0)))
    with Publisher(catalog, Replica(place / "base"), ShardSource(catalog), who="benchmark", settings=settings) as publisher:
        for number in range(1, versions + 1):
            if number > 1:
                model.step()
            publisher.publish(model, step=number)


def anonymous(pid: int) -> int:
    """Bytes of a process that are nobody else's."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


class Sampler(threading.Thread):
    """The highest of everything while it runs; `before`: what processes had at its start."""

    def __init__(self, directory: Path, workers: list[int]) -> None:
        super().__init__(daemon=True)
        self._directory, self._pids = directory, {"subscriber": os.getpid(), **{f"worker {n}": pid for n, pid in enumerate(workers)}}
        self.before = {name: anonymous(pid) for name, pid in self._pids.items()}
        self.highest: dict[str, int] = {}
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(POLL_S):
            sizes = dict.fromkeys(FILES, 0)
            for entry in os.scandir(self._directory):
                for name, prefix in FILES.items():
                    if entry.name.startswith(prefix):
                        try:
                            sizes[name] += entry.stat().st_size
                        except FileNotFoundError:
                            continue
            found = sizes | {name: anonymous(pid) - self.before[name] for name, pid in self._pids.items()}
            self.highest = {name: max(value, self.highest.get(name, 0)) for name, value in found.items()}

    def end(self) -> dict[str, int]:
        """Stops it."""
        self._over.set()
        self.join()
        return self.highest


def measure(place: Path, nbytes: int, swaps: int) -> dict[str, Any]:
    """One size: follow a run of `swaps` steps."""
    command = [sys.executable, "-m", "benchmarks.engine_memory", "--publish", str(place), "--sizes", str(nbytes), "--swaps", str(swaps)]
    subprocess.run(command, check=True)
    catalog = Catalog(open_store(f"file://{place / 'store'}"), "run")
    pauses, stages, verifies = [], [], []
    with Replica(place / "image", past=PastLimits()) as replica:
        first = catalog.manifest_of(1)
        update(replica, catalog, first, ShardSource(catalog))
        engine = RankEngine(replica.path, first.ref, replica.image.layout)
        swapper = Swapper({"ranks": engine})
        sampler = Sampler(replica.path, [worker.process.pid for worker in engine._workers])
        sampler.start()
        for version in range(2, swaps + 2):
            update(replica, catalog, catalog.manifest_of(version), ShardSource(catalog))
            with Changes(replica) as changes:
                done = swapper.swap(changes)
            assert done.unseen == ()
            pauses.append(done.pause_s)
            stages.append(done.stage_s)
            verifies.append(done.verify_s)
        highest = sampler.end()
        layout = replica.image.layout
        swapper.close()
    return {
        "model_bytes": layout.nbytes,
        "swaps": swaps,
        "bytes": highest,
        "of_model": {name: value / layout.nbytes for name, value in highest.items()},
        "extra_beside_the_image_of_model": (sum(highest.values()) - highest["image"]) / layout.nbytes,
        "median_s": {"stage": median(stages), "pause": median(pauses), "verify": median(verifies)},
    }


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    names, left = list(rows[0]["of_model"]), [0.0] * len(rows)
    for name in names:
        shares = [row["of_model"][name] for row in rows]
        axis.barh([f"{row['model_bytes'] / 1e6:,.0f} MB" for row in rows], shares, left=left, label=name)
        left = [one + other for one, other in zip(left, shares, strict=True)]
    axis.set(xlabel="memory beside the engine's own weights, in sizes of the model")
    axis.legend(fontsize=8, ncols=2)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(
    sizes: Annotated[str, typer.Option(help="Bytes of the models, with commas.")] = "100MB,400MB,1GB",
    swaps: int = 20,
    output: Path | None = None,
    small: Annotated[bool, typer.Option(help="20 MB, three swaps.")] = False,
    publish_to: Annotated[Path | None, typer.Option("--publish", hidden=True)] = None,
) -> None:
    """Follow a run and swap every version in."""
    if small:
        sizes, swaps = "20MB", 3
    if publish_to is not None:
        publish(publish_to, parse_size(sizes), swaps + 1)
        return
    rows = []
    for size in sizes.split(","):
        with TemporaryDirectory(prefix="weightsync-memory-", dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as name:
            rows.append(measure(Path(name), parse_size(size), swaps))
            print(json.dumps(rows[-1]))
    if output is not None:
        output.write_text(json.dumps({**circumstances(), "sizes": rows}, indent=1) + "\n")
        plot(rows, output.with_suffix(".png"))


if __name__ == "__main__":
    typer.run(main)
