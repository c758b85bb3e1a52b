"""`weightsync doctor`: what would go wrong, before it does."""

from collections.abc import Iterator
from typing import Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.findings import Finding, Level, attempt, exit_code
from weightsync.cli.options import CACHE, IMAGES, RUN, STORE, TRUST, verb

_MARKS = {Level.OK: "ok  ", Level.WARNING: "warn", Level.WRONG: "BAD ", Level.UNAVAILABLE: "DOWN"}


@verb(STORE, RUN, CACHE, IMAGES, TRUST)
def doctor(
    context: Context,
    *,
    read_only: Annotated[bool, typer.Option("--read-only", help="Try no writes: for credentials that only read.")] = False,
) -> int:
    """Finds out what is wrong, and what to do about it.

    Looks at this machine, at the store and at the run.
    Writes two tiny objects under RUN/probes/ and deletes them again, unless --read-only.

    Examples:
      1. This machine only
           weightsync doctor
      2. As a publisher would see a run
           weightsync doctor --store s3://bucket/models --run tuning
      3. As a subscriber with read-only credentials would
           weightsync doctor --store s3://bucket/models --run tuning --read-only
    """
    found: list[Finding] = []
    for finding in _look(context, write=not read_only):
        found.append(finding)
        context.out.line(f"{_MARKS[finding.level]}  {finding.name:<16} {finding.detail}")
        if finding.remedy:
            context.out.line(f"{'':22} fix: {finding.remedy}")
    code = exit_code(found)
    context.out.document({"ok": code == 0, "findings": [finding.to_json() for finding in found]})
    return code


def _look(context: Context, *, write: bool) -> Iterator[Finding]:
    from weightsync.cli.doctor_host import check_host
    from weightsync.cli.doctor_store import check_run, check_store
    from weightsync.format.keys import RunKeys
    from weightsync.wiring import images

    yield from check_host(context.cache, images(context.settings))
    if context.settings.store is None:
        yield Finding("store", Level.OK, "none was named: only this machine was looked at")
        return
    prefix = RunKeys(context.settings.run).prefix if context.settings.run else ""
    opened = attempt("store", lambda: Finding("store", Level.OK, context.store.url))
    if opened.level is not Level.OK:
        yield opened
        return
    reached = True
    for finding in check_store(context.store, prefix, write=write):
        reached = reached and (finding.name != "store" or finding.level is Level.OK)
        yield finding
    if reached and context.settings.run:
        yield from check_run(context.catalog)
