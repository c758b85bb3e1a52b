"""`weightsync show --path FROM TO`: what somebody who has one version downloads to get another, and what else it would cost."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.errors import WeightsyncError

if TYPE_CHECKING:
    from weightsync.catalog import Catalog, VersionRecord
    from weightsync.replica.path import Path

NOTHING = ("nothing", "0")
_LOOKED_AT = 5000  # versions whose deltas are added up


def run(context: Context, start: str, target: str) -> None:
    """Prints the cheapest path, step by step. `start` is a version, a channel, or `nothing`."""
    from weightsync.cli import look
    from weightsync.replica.path import cost, find_path

    catalog = context.catalog
    want = look.resolve(catalog, target)
    have = None if start in NOTHING else look.resolve(catalog, start)
    with context.out.busy("looking for the cheapest path"):
        path = find_path(catalog, have.ref if have else None, want)
        others = _others(catalog, have, want)
    rows = [
        (step.form.value, str(step.base_version or "-"), str(step.target.version), str(len(step.shards)), words.size(cost(step, record)))
        for step, record in zip(path.steps, path.records, strict=True)
    ]
    context.out.line(path.explain() if len(path.steps) < 4 else f"{len(path.steps)} steps, {words.size(path.nbytes)}")
    if rows:
        context.out.table(("FORM", "FROM", "TO", "SHARDS", "BYTES"), rows, left=1)
    for name, nbytes in others.items():
        context.out.line(f"{name}: {words.size(nbytes)}")
    context.out.document(_document(path, have, want, others))


def _others(catalog: "Catalog", have: "VersionRecord | None", want: "VersionRecord") -> dict[str, int]:
    """Bytes of what one might have done instead, as far as the store has it: every delta, or starting from nothing."""
    from weightsync.replica.path import find_path

    found: dict[str, int] = {}
    if have is not None:
        with suppress(WeightsyncError):
            found["from nothing"] = find_path(catalog, None, want).nbytes
    replayed = _replay(catalog, have, want)
    if replayed is not None:
        found["every delta"] = replayed
    return found


def _replay(catalog: "Catalog", have: "VersionRecord | None", want: "VersionRecord") -> int | None:
    """The first payloads from `want` back to `have` (None: to a snapshot); None where that leads elsewhere, or further than is looked."""
    from weightsync.cli import look

    first = have.ref.version if have else 0
    refs = [ref for ref in catalog.committed() if first <= ref.version <= want.ref.version][-_LOOKED_AT:]
    known = {record.ref: record for record in look.records(catalog, refs) if record is not None}
    total, here = 0, known.get(want.ref)
    while here is not None and (have is None or here.ref != have.ref):
        total += here.manifest.payload_bytes + here.manifest.digests.nbytes
        parent = here.manifest.parent
        if not here.manifest.base or parent is None:
            return total if have is None else None
        here = known.get(parent)
    return total if here is not None else None


def _document(path: "Path", have: "VersionRecord | None", want: "VersionRecord", others: dict[str, int]) -> dict[str, Any]:
    from weightsync.replica.path import cost

    return {
        "from": have.ref.version if have else None,
        "to": want.ref.version,
        "bytes": path.nbytes,
        "starts_fresh": path.starts_fresh,
        "steps": [
            {
                "form": step.form.value,
                "base": step.base_version,
                "target": step.target.version,
                "writer": step.writer,
                "shards": len(step.shards),
                "bytes": cost(step, record),
            }
            for step, record in zip(path.steps, path.records, strict=True)
        ],
        "instead": others,
    }
