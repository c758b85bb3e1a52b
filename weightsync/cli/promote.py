"""`weightsync promote`: point a channel to a version."""

from typing import Annotated

import typer

from weightsync.cli.channels import Channel, Expected, Plan, Wait, Who, Why, move
from weightsync.cli.context import Context
from weightsync.cli.options import KEY, RUN, SERVER, STORE, TRUST, verb


@verb(STORE, RUN, TRUST, KEY, *SERVER)
def promote(
    context: Context,
    *,
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A number, or a channel for where it points.")],
    channel: Channel,
    expected_sequence: Expected = None,
    who: Who = None,
    why: Why = "",
    plan: Plan = False,
    wait: Wait = None,
) -> int:
    """Points a channel to a version.

    Those who follow the channel go there. The channel is made if it does not exist.

    Examples:
      1. Serve version 7
           weightsync promote 7 --channel serving --store s3://bucket/models --run tuning --why "passed the evaluation"
      2. Serve what the canary serves
           weightsync promote canary --channel serving --store s3://bucket/models --run tuning
    """
    return move(context, channel=channel, version=version, expected_sequence=expected_sequence, who=who, why=why, plan=plan, wait=wait)
