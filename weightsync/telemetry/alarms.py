"""What should worry somebody, computed from facts alone. Pure; the names are those of the metric `weightsync_run_alarm{alarm=...}`.

behind_s          a subscriber has not served what its channel demands for too long
behind_versions   a subscriber is too many versions behind
below_channel     subscribers are below their channel for longer than an update takes
unchanged         the last N versions changed nothing: is the trainer stuck, or its output not what is published?
unusual_change    the last version changed far more than usual: another model, another dtype, a diverged run?
silent            no new version for too long
expired           a channel's head has expired: subscribers accept nothing newer
failing           a subscriber's last update failed
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from weightsync.telemetry.facts import Lag, RunFacts, SubscriberFact, VersionFact, lag
from weightsync.telemetry.names import ALARMS


@dataclass(frozen=True)
class Thresholds:
    """From where on something is an alarm. 0 switches one off."""

    behind_s: float = 300.0
    behind_versions: int = 10
    below_s: float = 60.0
    unchanged_versions: int = 3
    change_factor: float = 5.0
    silent_s: float = 3600.0


@dataclass(frozen=True)
class Alarm:
    """A raised alarm: what, about whom, in words."""

    alarm: str
    subject: str
    detail: str


USUAL = 16  # versions that say what is usual
LEAST_USUAL = 3  # fewer say nothing


def alarms(facts: RunFacts, limits: Thresholds | None = None) -> list[Alarm]:
    """All that are raised, in the order of `ALARMS`."""
    limits = limits or Thresholds()
    lags = [(subscriber, lag(facts, subscriber)) for subscriber in facts.subscribers or ()]
    found = [
        *_behind(lags, limits),
        *_below(lags, limits),
        *history_alarms(facts.versions, limits),
        *_silent(facts, limits),
        *(
            Alarm("expired", channel.channel, f"the head of channel {channel.channel} expired {facts.now_s - channel.expires_s:.0f} s ago")
            for channel in facts.channels
            if channel.expires_s is not None and channel.expires_s <= facts.now_s
        ),
        *(
            Alarm("failing", subscriber.name, f"{subscriber.error_kind or 'failed'}: {subscriber.error or 'its last update failed'}")
            for subscriber, _ in lags
            if subscriber.failing
        ),
    ]
    return sorted(found, key=lambda alarm: ALARMS.index(alarm.alarm))


def history_alarms(versions: Sequence[VersionFact], limits: Thresholds | None = None) -> list[Alarm]:
    """What the newest versions (ascending) say by themselves."""
    limits = limits or Thresholds()
    found = []
    last = versions[-limits.unchanged_versions :] if limits.unchanged_versions else ()
    if len(last) == limits.unchanged_versions and last and all(v.changed_lanes == 0 and not v.snapshot for v in last):
        found.append(Alarm("unchanged", str(last[-1].version), f"versions {last[0].version} to {last[-1].version} changed nothing"))
    if unusual := _unusual(versions, limits):
        found.append(unusual)
    return found


def _unusual(versions: Sequence[VersionFact], limits: Thresholds) -> Alarm | None:
    """A version against the median of those before it. A snapshot says that everything changed, which after deltas is unusual too."""
    if not limits.change_factor or len(versions) <= LEAST_USUAL:
        return None
    newest = versions[-1]
    before = [v.changed_lanes for v in versions[-1 - USUAL : -1] if not v.snapshot and v.changed_lanes]
    if len(before) < LEAST_USUAL:
        return None
    usual = median(before)
    if newest.changed_lanes <= limits.change_factor * usual:
        return None
    times = newest.changed_lanes / usual
    what = "was sent whole" if newest.snapshot else f"changed {newest.changed_lanes} values"
    return Alarm("unusual_change", str(newest.version), f"version {newest.version} {what}, {times:.0f} times as many as usual")


def _behind(lags: Sequence[tuple[SubscriberFact, Lag]], limits: Thresholds) -> list[Alarm]:
    found = []
    for subscriber, behind in lags:
        where = f"{subscriber.name} serves {subscriber.served or 'nothing'}"
        if limits.behind_s and behind.seconds > limits.behind_s:
            found.append(Alarm("behind_s", subscriber.name, f"{where} and has been behind {subscriber.channel} for {behind.seconds:.0f} s"))
        if limits.behind_versions and behind.versions > limits.behind_versions:
            found.append(Alarm("behind_versions", subscriber.name, f"{where}, {behind.versions} versions behind {subscriber.channel}"))
    return found


def _below(lags: Sequence[tuple[SubscriberFact, Lag]], limits: Thresholds) -> list[Alarm]:
    below = [subscriber.name for subscriber, behind in lags if behind.behind and behind.seconds > limits.below_s]
    if not below or not limits.below_s:
        return []
    names = ", ".join(below[:5]) + (f" and {len(below) - 5} more" if len(below) > 5 else "")
    return [Alarm("below_channel", str(len(below)), f"{len(below)} of {len(lags)} subscribers are below their channel: {names}")]


def _silent(facts: RunFacts, limits: Thresholds) -> list[Alarm]:
    if not limits.silent_s or not facts.versions:
        return []
    past_s = facts.now_s - facts.versions[-1].committed_s
    return [Alarm("silent", str(facts.versions[-1].version), f"no new version for {past_s:.0f} s")] if past_s > limits.silent_s else []
