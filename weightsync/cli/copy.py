"""`weightsync copy`: a run, or one version with its chain, to another store."""

from typing import Annotated

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.failures import FOUND_WRONG
from weightsync.cli.options import RUN, STORE, TRUST, verb


@verb(STORE, RUN, TRUST)
def copy(
    context: Context,
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The other store; the run keeps its name there.")],
    version: Annotated[
        str | None, typer.Option("--version", metavar="N", help="Only this version (a number, or a channel), with what its chain needs.")
    ] = None,
) -> int:
    """Copies a run to another store.

    Every object is checked on the way; signatures hold, for records are copied as they are. The heads come last, so that a copy that was
    cut short is not seen; run it again to go on, and later to bring what is new. Ends with 1 where the source is damaged; the rest is
    copied all the same.

    With --version the copy is the run as it was when that version was the newest: for an air gap.

    Examples:
      1. Against disasters, every night
           weightsync copy --store s3://bucket/models --run tuning --to s3://elsewhere/models
      2. What is being served, onto a disk
           weightsync copy --store s3://bucket/models --run tuning --version serving --to file:///mnt/disk/models
    """
    from weightsync.catalog.open import open_catalog
    from weightsync.cli import look
    from weightsync.retention.copy import Copier

    catalog = context.catalog
    catalog.run()
    number = None if version is None else look.resolve(catalog, version).ref.version
    with context.with_settings(store=to) as there, context.out.progress("copying") as advance:
        target = open_catalog(there.settings, there.store)
        done = Copier(catalog, target, progress=advance).copy(number)
        where = target.store.url
    for what, error in done.damaged:
        context.out.line(f"BAD  {what}: {error.message} ({error.kind})")
    context.out.line(
        f"{words.count(len(done.versions), 'version')} in {where}, {len(done.held)} more for their chains: "
        f"{words.count(done.objects, 'object')} copied, {words.size(done.nbytes)}; {done.present} stood there already"
    )
    context.out.document(
        {
            "to": where,
            "versions": list(done.versions),
            "held": list(done.held),
            "objects": done.objects,
            "bytes": done.nbytes,
            "present": done.present,
            "sequence": done.sequence,
            "damaged": [{"what": what, "kind": error.kind, "message": error.message} for what, error in done.damaged],
        }
    )
    return FOUND_WRONG if done.damaged else 0
