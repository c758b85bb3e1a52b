"""`weightsync rollback`: point a channel back to an older version."""

from typing import Annotated

import typer

from weightsync.cli.channels import Channel, Expected, Plan, Wait, Who, Why, move
from weightsync.cli.context import Context
from weightsync.cli.options import KEY, RUN, SERVER, STORE, TRUST, verb


@verb(STORE, RUN, TRUST, KEY, *SERVER)
def rollback(
    context: Context,
    *,
    channel: Channel,
    to: Annotated[str, typer.Option("--to", metavar="N", help="The version to go back to.")],
    expected_sequence: Expected = None,
    who: Who = None,
    why: Why = "",
    plan: Plan = False,
    wait: Wait = None,
) -> int:
    """Points a channel back to an older version.

    It is a new move: nothing is removed, and those who follow the channel go back; hosts that keep the version beside their weights do
    so without a download. With --server and --wait it reports until all of them serve it, and exits with 1 if they do not in time.

    Rolling back `latest` stops a running publisher (it is fenced): the next one goes on from the older version.

    Examples:
      1. Serve version 6 again
           weightsync rollback --channel serving --to 6 --store s3://bucket/models --run tuning --why "worse answers"
      2. And watch the fleet until it does
           weightsync rollback --channel serving --to 6 --server cp:7443 --wait 60
    """
    return move(
        context, channel=channel, version=to, expected_sequence=expected_sequence, who=who, why=why, plan=plan, wait=wait, back=True
    )
