"""`weightsync pin`: keep a version, whatever the policy says."""

from typing import Annotated

import typer

from weightsync.cli.channels import Who, Why, me
from weightsync.cli.context import Context
from weightsync.cli.options import RUN, STORE, TRUST, verb


@verb(STORE, RUN, TRUST)
def pin(
    context: Context,
    *,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A number, or a channel for where it points.")],
    who: Who = None,
    why: Why = "",
) -> None:
    """Keeps a version from being collected.

    It stays until it is unpinned, with everything that its chain needs. An older pin stays as it is.

    Examples:
      1. Keep what went to production
           weightsync pin serving --store s3://bucket/models --run tuning --why "release 4"
      2. Keep version 7
           weightsync pin 7 --store s3://bucket/models --run tuning
    """
    from weightsync.cli import look

    ref = look.resolve(context.catalog, version).ref
    found = context.catalog.put_pin(ref.version, who=who or me(), why=why)
    context.out.line(f"version {ref.version} is pinned by {found.who}" + (f": {found.why}" if found.why else ""))
    context.out.document({"version": ref.version, "who": found.who, "why": found.why, "created_ms": found.created_ms})
