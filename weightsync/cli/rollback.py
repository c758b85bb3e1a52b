"""`weightsync rollback`: point a channel back to an older version."""

from typing import Annotated

import typer

from weightsync.cli.channels import Channel, Expected, Plan, Who, Why, move
from weightsync.cli.context import Context
from weightsync.cli.options import KEY, RUN, STORE, TRUST, verb


@verb(STORE, RUN, TRUST, KEY)
def rollback(
    context: Context,
    *,
    channel: Channel,
    to: Annotated[str, typer.Option("--to", metavar="N", help="The version to go back to.")],
    expected_sequence: Expected = None,
    who: Who = None,
    why: Why = "",
    plan: Plan = False,
) -> None:
    """Points a channel back to an older version.

    It is a new move: nothing is removed, and those who follow the channel go back.

    Rolling back `latest` stops a running publisher (it is fenced): the next one goes on from the older version.

    Examples:
      1. Serve version 6 again
           weightsync rollback --channel serving --to 6 --store s3://bucket/models --run tuning --why "worse answers"
    """
    move(context, channel=channel, version=to, expected_sequence=expected_sequence, who=who, why=why, plan=plan)
