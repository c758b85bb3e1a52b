"""What `promote` and `rollback` share."""

import base64
import getpass
import json
import platform
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli.context import Context
from weightsync.errors import Invalid, NotFound

if TYPE_CHECKING:
    from weightsync.catalog import Head
    from weightsync.format.refs import VersionRef

Channel = Annotated[str, typer.Option("--channel", metavar="C", help="The channel to move.")]
Expected = Annotated[
    int | None, typer.Option("--expected-sequence", metavar="N", min=0, help="Refuse if the channel has been moved since this sequence.")
]
Who = Annotated[str | None, typer.Option("--who", metavar="NAME", help="Who moves it, for the record; default: user@host.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="Why, for the record.")]
Wait = Annotated[
    float | None,
    typer.Option("--wait", metavar="S", min=0, help="Report until all who follow the channel serve it, for at most S seconds (--server)."),
]
Plan = Annotated[bool, typer.Option("--plan", help="Write nothing; print the move as a MoveChannel request for a control plane.")]


def me() -> str:
    """user@host, for records."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry in the user database, as in many containers
        user = "unknown"
    return f"{user}@{platform.node()}"


def move(
    context: Context,
    *,
    channel: str,
    version: str,
    expected_sequence: int | None,
    who: str | None,
    why: str,
    plan: bool = False,
    wait: float | None = None,
    back: bool = False,
) -> int:
    """Moves `channel` and says where it was and where it is; with `plan` only prints the move, for somebody else to make.

    A channel that is there already stays as it is, except `latest`, whose move also stops a publisher. With `wait` it reports until those
    who follow the channel serve it, and returns 1 when they do not in time. With `back` the channel must
    point to something: a misspelt channel must not look like a rollback that worked. Raises `NotFound`.
    """
    from weightsync.cli import fleet_wait, look

    catalog = context.catalog
    target = look.resolve(catalog, version)
    before = catalog.head(channel)
    if back and (before is None or before.version is None):
        raise NotFound(
            f"channel {channel!r} points to nothing, so it cannot go back",
            remedy="`weightsync versions` shows the channels; `weightsync promote` makes one",
        )
    if back and before is not None and before.version is not None and target.ref.version > before.version.version:
        raise Invalid(
            f"version {target.ref.version} is newer than {before.version.version}, to which {channel!r} points",
            remedy="`weightsync promote` moves a channel forward",
        )
    if plan:
        made = catalog.plan_move(channel, target.ref, expected_sequence=expected_sequence, who=who or me(), why=why)
        record = base64.b64encode(made.envelope.data).decode()
        print(json.dumps({"run": context.run, "channel": channel, "record": record, "expected_sequence": made.expected_sequence}))
        return 0
    was = before.move.version if before else 0
    if before is not None and _is_there(before, channel, target.ref, expected_sequence):
        head = before
        context.out.line(f"{channel}: {was} already, sequence {head.move.sequence}: nothing to do")
    else:
        head = catalog.move(channel, target.ref, expected_sequence=expected_sequence, who=who or me(), why=why)
        context.out.line(f"{channel}: {was or 'nothing'} -> {head.move.version}, sequence {head.move.sequence}")
        fleet_wait.tell(context, channel)
    served: dict[str, object] = {}
    if wait is not None:
        served = fleet_wait.until_served(context, channel, head.move.sequence, head.move.version, wait)
    context.out.document(
        {
            "channel": channel,
            "changed": head is not before,
            "from": was or None,
            "version": head.move.version,
            "sequence": head.move.sequence,
            "epoch": head.move.epoch,
            "who": head.move.who,
            "why": head.move.why,
            **served,
        }
    )
    return 1 if served.get("complete") is False else 0


def _is_there(head: "Head", channel: str, target: "VersionRef", expected_sequence: int | None) -> bool:
    from weightsync.format.keys import LATEST

    return channel != LATEST and head.version == target and expected_sequence in (None, head.move.sequence)
