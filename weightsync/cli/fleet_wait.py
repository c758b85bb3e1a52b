"""Watching a fleet until it serves what its channel points to."""

from typing import TYPE_CHECKING

from weightsync.cli.context import Context
from weightsync.clock import SYSTEM, Clock
from weightsync.errors import WeightsyncError

if TYPE_CHECKING:
    from weightsync.telemetry.facts import RunFacts, SubscriberFact

POLL_S = 0.5


def tell(context: Context, channel: str) -> None:
    """Gives the control plane notice. A hint: whoever polls finds the move as well."""
    plane = context.plane()
    if plane is None:
        return
    try:
        plane.notify(context.run, channel)
    except WeightsyncError as error:
        context.out.note(f"note: the control plane was not given notice: {error}")
    finally:
        plane.close()


def until_served(context: Context, channel: str, sequence: int, version: int, wait_s: float, *, clock: Clock = SYSTEM) -> dict[str, object]:
    """Says on standard error how many serve `version`, and who does not, until all do, the channel is moved on, or `wait_s` have passed.

    `complete` is None where nobody is known to follow the channel: that proves nothing.
    """
    from weightsync.cli.status import observer

    if context.settings.server is None:
        context.out.note(
            f"who follows {channel} is known to a control plane only: give --server, or watch `weightsync status --server HOST:PORT`"
        )
        return {"complete": None}
    with observer(context, 1) as look:
        said, until_s = "", clock.monotonic_s() + wait_s
        while True:
            facts = look()
            members = followers(facts, channel)
            late = [one.name for one in members if one.served != version]
            if not members:
                context.out.note(f"no subscriber of {channel} is known to {context.settings.server}: there is nobody to wait for")
                return {"complete": None, "subscribers": 0, "late": []}
            text = f"{len(members) - len(late)} of {len(members)} subscribers of {channel} serve version {version}"
            if text != said:
                context.out.note(text + (f"; not yet: {', '.join(late[:5])}{', ...' if len(late) > 5 else ''}" if late else ""))
                said = text
            found = facts.channel(channel)
            moved_on = found is not None and found.sequence > sequence
            if not late or moved_on or clock.monotonic_s() >= until_s:
                break
            clock.sleep_s(POLL_S)
    if moved_on:
        context.out.note(f"{channel} was moved on meanwhile")
    return {"complete": not late and not moved_on, "subscribers": len(members), "late": late}


def followers(facts: "RunFacts", channel: str) -> "list[SubscriberFact]":
    """The subscribers that follow a channel."""
    return [one for one in facts.subscribers or () if one.channel == channel]
