"""`weightsync unpin`: leave a version to the policy again."""

from typing import Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import RUN, STORE, TRUST, verb


@verb(STORE, RUN, TRUST)
def unpin(
    context: Context,
    *,
    version: Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The number of a pinned version.")],
) -> None:
    """Takes a pin away.

    The next `weightsync gc` treats the version like any other.

    Examples:
      1. Version 7 may go
           weightsync unpin 7 --store s3://bucket/models --run tuning
    """
    context.catalog.drop_pin(version)
    context.out.line(f"version {version} is not pinned any more")
    context.out.document({"version": version})
