"""`weightsync versions`: what a run holds."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.options import RUN, STORE, TRUST, verb
from weightsync.clock import SYSTEM

if TYPE_CHECKING:
    from weightsync.catalog import VersionRecord

COLUMNS = ("version", "step", "epoch", "parent", "changed", "bytes", "payload ratio", "age", "channels")


@verb(STORE, RUN, TRUST)
def versions(
    context: Context,
    *,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Only the newest N; 0: all.")] = 0,
) -> None:
    """Lists the versions of a run.

    Committed versions, oldest first, and the channels that point to them.
    BYTES are those of the payload that leads from the parent (a snapshot: from nothing), PAYLOAD RATIO the
    bytes of the checkpoint over them. `publish` and `demo` count all that a version adds, so their ratio is smaller.

    Examples:
      1. All versions
           weightsync versions --store file:///data/store --run tuning
      2. The newest ten, for a script
           weightsync versions --store file:///data/store --run tuning --limit 10 --json
    """
    from weightsync.cli import look

    catalog = context.catalog
    run, pointing = catalog.run(), look.channels(catalog)
    refs = catalog.committed()
    refs = refs[-limit:] if limit else refs
    rows, documents = [], []
    for ref, record in zip(refs, look.records(catalog, refs), strict=True):
        names = sorted(name for name, version in pointing.items() if version == ref.version)
        if record is None:
            rows.append((str(ref.version), *[""] * 6, "collected", ", ".join(names)))
            continue
        documents.append({**look.summary(record, catalog.layout(record.manifest.layout).lanes), "channels": names})
        rows.append(_row(record, documents[-1]))
    context.out.table(COLUMNS, rows, left=0)
    if not rows:
        context.out.note(f"run {run.run!r} has no versions yet; publish one with `weightsync publish`")
    context.out.document(
        {
            "store": catalog.store.url,
            "run": run.run,
            "model": run.model,
            "channels": pointing,
            "collected": [ref.version for ref in refs if ref.version not in {one["version"] for one in documents}],
            "versions": documents,
        }
    )


def _row(record: "VersionRecord", document: dict[str, Any]) -> tuple[str, ...]:
    manifest = record.manifest
    return (
        str(manifest.version),
        "-" if manifest.step is None else str(manifest.step),
        str(manifest.epoch),
        str(manifest.parent.version) if manifest.parent else "-",
        words.percent(manifest.changed_lanes, document["lanes"]),
        words.size(manifest.payload_bytes),
        words.ratio(manifest.checkpoint_bytes, manifest.payload_bytes),
        words.age(SYSTEM.now_s() - manifest.created_ms / 1000),
        ", ".join(document["channels"]),
    )
