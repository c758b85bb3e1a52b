"""All bytes of a run of 100 versions, snapshots included: by policy, and with a snapshot of every 25th version, in the same run.

    python -m benchmarks.cadence --size 100MB --versions 100 --output benchmarks/results/cadence.json

Every publisher gets the same states. What is counted is what lies in the store at the end. Beside it, what a new host downloads at each
version, on average and at worst: that is what the bytes of snapshots buy.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.brute_force import cheapest, edges
from benchmarks.catchup import RUN, SHARED_MEMORY, records
from benchmarks.long_run import Model
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
from weightsync.store.open import open_store

CADENCE = 25
WAYS = {
    "policy": AdditionSettings(),
    f"every_{CADENCE}": AdditionSettings((), SnapshotPolicy(every=CADENCE)),
    f"every_{CADENCE}_and_folds": AdditionSettings(snapshots=SnapshotPolicy(every=CADENCE)),
}


def run(place: Path, nbytes: int, versions: int, additions: AdditionSettings) -> dict[str, Any]:
    """One publisher; the states depend on the seed alone."""
    model, store = Model(nbytes), open_store(f"file://{place / 'store'}")
    catalog = Catalog(store, RUN)
    replica = Replica(place / "base", past=PastLimits())
    settings = Settings(chunking=model.chunking, additions=additions)
    with Publisher(catalog, replica, ShardSource(catalog), who="benchmark", settings=settings) as publisher:
        for number in range(1, versions + 1):
            if number > 1:
                model.step()
            publisher.publish(model, step=number)
            publisher.settle()
    ways = edges(records(store), RUN)
    news = [cheapest(ways, 0, version) for version in range(1, versions + 1)]
    return {
        "stored_bytes": sum(stat.size_bytes for stat in store.list("")),
        "payload_bytes": {form: sum(edge[2] for edge in ways if edge[3] == form) for form in ("delta", "fold", "snapshot")},
        "snapshots": [edge[1] for edge in ways if edge[3] == "snapshot"],
        "new_host_bytes_mean": sum(news) / len(news),
        "new_host_bytes_worst": max(news),
    }


def main(
    size: Annotated[str, typer.Option(help="Bytes of the model.")] = "100MB", *, versions: int = 100, output: Path | None = None
) -> None:
    """Three publishers, one after the other."""
    found: dict[str, Any] = {}
    for name, additions in WAYS.items():
        parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        with TemporaryDirectory(prefix="weightsync-cadence-", dir=parent) as place:
            found[name] = run(Path(place), parse_size(size), versions, additions)
    ratio = found[f"every_{CADENCE}"]["stored_bytes"] / found["policy"]["stored_bytes"]
    result = {**circumstances(), "model_bytes": Model(parse_size(size)).layout.nbytes, "versions": versions, **found, "ratio": ratio}
    text = json.dumps(result, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    typer.run(main)
