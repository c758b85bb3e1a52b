"""`weightsync verify --engine`: whether an engine serves the version that it says it serves."""

from typing import Any

from weightsync.cli import look
from weightsync.cli.context import Context
from weightsync.cli.verify_report import Report
from weightsync.errors import NotFound


def verify_engine(context: Context, report: Report, version: str | None, url: str) -> dict[str, Any]:
    """Compares the sums of all live parameters with those of the version that the engine says it serves (and with `version`, if given).

    Needs the records of the store, and no weights. Raises `Unavailable` where the engine does not answer, `NotFound` where it serves none.
    """
    from contextlib import closing

    from weightsync.engine.open import open_engine
    from weightsync.engine.proof import check_sums
    from weightsync.errors import Corrupt
    from weightsync.replica.verify import Finding
    from weightsync.wiring import engine_token

    catalog, found = context.catalog, []
    with closing(open_engine(url, token=engine_token(context.settings), look_only=True)) as engine:
        says = engine.version
        if says is None and version is None:
            raise NotFound(f"{url} does not say which version it serves", remedy="name one with --version, or let a subscriber feed it")
        wanted = look.resolve(catalog, version) if version else None
        record = wanted or catalog.manifest_of(says.version, says.manifest) if says else wanted
        if record is None:
            raise NotFound(f"{url} serves nothing")
        name = f"version {record.ref.version}"
        if says is not None and says != record.ref:
            found.append(Finding("conflict", url, f"{url} says that it serves version {says.version}, not {record.ref.version}", ""))
        layout = catalog.layout(record.manifest.layout)
        table = catalog.digests(record.manifest, layout)
        with context.out.busy(f"adding up what {url} serves"):
            live = engine.sums()
    unseen: tuple[str, ...] = ()
    try:
        unseen = check_sums(layout, table.sums, live, record.ref)
    except Corrupt as error:
        remedy = "let its subscriber load it anew; until then take it out of service"
        found.append(Finding(error.kind, url, error.message, remedy))
    seen = len(layout.tensors) - len(unseen)
    if unseen and not found:
        context.out.note(f"note: {len(unseen)} tensors are hidden by the engine and were not compared, the first is {unseen[0]}")
    fine = f"{url} serves {name}: {seen} of {len(layout.tensors)} tensors, every bit"
    return {
        "version": record.ref.version,
        "manifest": record.ref.manifest,
        "engine": url,
        "tensors": seen,
        "unseen": list(unseen),
    } | report.add(f"{url} does not serve {name}", found, fine)
