"""Catching up after many missed versions: bytes and time against the length of the gap.

    python -m benchmarks.catchup --size 100MB --versions 1441 --output benchmarks/results/catchup.json --plot benchmarks/results/catchup.svg

Publishes a run (`long_run`) to a store, folds and snapshots beside it as the defaults say, then brings subscribers that are behind by each
gap to the newest version, over loopback from an S3 server (or from a directory, `--store file`). Beside each: the least bytes that
`brute_force` finds over the stored payloads, every delta replayed, the newest snapshot downloaded with what follows it, and what other
levels of folds would have made of it. For the first 100 versions: all bytes, against a snapshot of every 25th version.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.brute_force import Edge, cheapest, edges
from benchmarks.catchup_plot import draw
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
from weightsync.replica.update import update
from weightsync.store.api import ObjectStore
from weightsync.store.open import open_store
from weightsync.testing.s3_server import seaweedfs

RUN = "run"
GAPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1440, 2048)
CADENCE, FIRST = 25, 100
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


@dataclass
class Published:
    """What publishing the run took. `snapshot_bytes`: of versions 1, 26, 51, ...: what a fixed cadence would have added."""

    seconds: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    snapshot_bytes: dict[int, int] = field(default_factory=dict)


def publish(catalog: Catalog, place: Path, model: Model, versions: int, *, spans: tuple[int, ...], minutes: float) -> Published:
    """The run; ends early when `minutes` have passed."""
    done, until = Published(), time.monotonic() + 60 * minutes
    settings = Settings(chunking=model.chunking, additions=AdditionSettings(spans, SnapshotPolicy()))
    replica = Replica(place, past=PastLimits(versions=max(16, max(spans) + 16), image_share=2.0))
    with Publisher(catalog, replica, ShardSource(catalog), who="benchmark", settings=settings) as publisher:
        for number in range(1, versions + 1):
            if number > 1:
                model.step()
            began = time.monotonic()
            published = publisher.publish(model, step=number)
            done.seconds.append(time.monotonic() - began)
            done.changed.append(published.changed_fraction)
            publisher.settle()  # training takes longer than that
            if number <= FIRST + 1 and number % CADENCE == 1:
                done.snapshot_bytes[number] = model.snapshot_bytes()
            if number % 50 == 0:
                print(f"{number} versions, {done.seconds[-1]:.2f} s for the last", file=sys.stderr, flush=True)
            if time.monotonic() > until:
                break
    return done


def records(store: ObjectStore) -> dict[str, bytes]:
    """All manifests and payload records."""
    return {stat.key: store.get(stat.key, max_bytes=1 << 22).data for stat in store.list(f"{RUN}/versions/")}


def catch_up(catalog: Catalog, place: Path, have: int, want: int) -> dict[str, Any]:
    """From a replica that holds `have` (0: nothing) to `want`."""
    record = catalog.manifest_of(want)
    with Replica(place) as replica:
        if have:
            update(replica, catalog, catalog.manifest_of(have), ShardSource(catalog))
        began = time.monotonic()
        done = update(replica, catalog, record, ShardSource(catalog))
        took_s = time.monotonic() - began
    shutil.rmtree(place)
    forms: dict[str, int] = {}
    for step in done.path.steps:
        forms[step.form.value] = forms.get(step.form.value, 0) + 1
    return {
        "bytes": done.path.nbytes,
        "bytes_fetched": done.bytes_fetched,
        "seconds": took_s,
        "path_s": done.seconds.path_s,
        "fetch_s": done.seconds.fetch_s,
        "apply_s": done.seconds.apply_s,
        "steps": forms,
    }


def replayed(ways: list[Edge], have: int, want: int) -> int:
    """Every delta after `have` (0: after the first version)."""
    return cheapest(ways, have, want, keep=lambda edge: edge[3] == "delta" or edge[1] == 1)


def levels(ways: list[Edge], have: int, want: int, spans: tuple[int, ...]) -> dict[str, int]:
    """Least bytes with no folds, and with the folds of each level and all below."""
    found = {}
    for most in (0, *spans):
        found[str(most)] = cheapest(ways, have, want, keep=lambda edge, most=most: edge[3] != "fold" or edge[1] - edge[0] <= most)
    return found


def gap(catalog: Catalog, place: Path, ways: list[Edge], *, have: int, want: int, spans: tuple[int, ...]) -> dict[str, Any]:
    """One subscriber."""
    found = catch_up(catalog, place, have, want)
    least = cheapest(ways, have, want)
    return {
        "gap": want - have,
        **found,
        "least_bytes": least,
        "over_least": found["bytes"] / least,
        "every_delta_bytes": replayed(ways, have, want),
        "from_nothing_bytes": cheapest(ways, 0, want),
        "levels_bytes": levels(ways, have, want, spans),
    }


def first_hundred(ways: list[Edge], done: Published) -> dict[str, Any]:
    """All bytes of the first versions: as published, and with a fixed cadence of snapshots instead of folds and policy."""
    last = min(FIRST, len(done.seconds))
    own = [edge for edge in ways if edge[1] <= last]
    by_form = {form: sum(edge[2] for edge in own if edge[3] == form) for form in ("delta", "fold", "snapshot")}
    fixed = by_form["delta"] + sum(nbytes for number, nbytes in done.snapshot_bytes.items() if number <= last)
    return {
        "versions": last,
        "bytes": sum(by_form.values()),
        "by_form": by_form,
        "snapshots": [edge[1] for edge in own if edge[3] == "snapshot"],
        f"cadence_{CADENCE}_bytes": fixed,
        "ratio": fixed / sum(by_form.values()),
    }


@contextmanager
def opened(kind: str, place: Path) -> Iterator[ObjectStore]:
    """The store of the run."""
    if kind == "file":
        (place / "store").mkdir(parents=True, exist_ok=True)
        yield open_store(f"file://{place / 'store'}")
        return
    (place / "server").mkdir(parents=True, exist_ok=True)
    with seaweedfs(place / "server") as server:
        os.environ.update(server.environment)
        store = open_store(server.url())
        try:
            yield store
        finally:
            store.close()


def measure(store: ObjectStore, place: Path, nbytes: int, *, versions: int, spans: tuple[int, ...], minutes: float) -> dict[str, Any]:
    """The whole benchmark."""
    catalog = Catalog(store, RUN)
    model = Model(nbytes)
    done = publish(catalog, place / "base", model, versions, spans=spans, minutes=minutes)
    count = len(done.seconds)
    ways = edges(records(store), RUN)
    # A second catalog: what the publisher has read may not help.
    missed = sorted({each for each in (*GAPS, count) if each <= count})
    gaps = [gap(Catalog(store, RUN), place / "image", ways, have=count - each, want=count, spans=spans) for each in missed]
    later = sorted(done.seconds[1:])
    return {
        "model_bytes": model.layout.nbytes,
        "versions": count,
        "changed_mean": sum(done.changed[1:]) / max(1, count - 1),
        "publish_median_s": later[len(later) // 2],
        "stored_bytes": {form: sum(edge[2] for edge in ways if edge[3] == form) for form in ("delta", "fold", "snapshot")},
        "stored_folds": {str(span): sum(e[2] for e in ways if e[3] == "fold" and e[1] - e[0] in (span, span - 1)) for span in spans},
        "snapshots": [edge[1] for edge in ways if edge[3] == "snapshot"],
        "first": first_hundred(ways, done),
        "gaps": gaps,
    }


def main(
    size: Annotated[str, typer.Option(help="Bytes of the model.")] = "100MB",
    *,
    versions: int = 1441,
    store: Annotated[str, typer.Option(help="s3 (a server on loopback) or file.")] = "s3",
    fold_spans: Annotated[str, typer.Option(help="Levels of folds.")] = "8,64",
    minutes: Annotated[float, typer.Option(help="Stop publishing after so long.")] = 120.0,
    output: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Publish, fall behind, catch up."""
    spans = tuple(int(span) for span in fold_spans.split(","))
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with TemporaryDirectory(prefix="weightsync-catchup-", dir=parent) as name, opened(store, Path(name)) as opened_store:
        found = measure(opened_store, Path(name), parse_size(size), versions=versions, spans=spans, minutes=minutes)
    result = {**circumstances(), "store": store, "fold_spans": list(spans), **found}
    text = json.dumps(result, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)
    if plot is not None:
        draw(result, plot)


if __name__ == "__main__":
    typer.run(main)
