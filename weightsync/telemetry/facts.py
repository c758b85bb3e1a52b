"""What can be said of a run at one moment, wherever it was read: plain values, from which lags and alarms are computed. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

FIXED = "version-"  # before a number: in place of a channel's name, for a subscriber of a fixed version


@dataclass(frozen=True)
class ChannelFact:
    """Where a channel points (version 0: nowhere yet). Times are UNIX seconds; `expires_s` None: never."""

    channel: str
    version: int
    sequence: int
    epoch: int
    moved_s: float
    who: str
    why: str = ""
    expires_s: float | None = None


@dataclass(frozen=True)
class VersionFact:
    """A committed version. `lanes` is 0 where the layout was not looked at."""

    version: int
    step: int | None
    committed_s: float
    epoch: int
    snapshot: bool
    changed_lanes: int
    lanes: int
    payload_bytes: int
    checkpoint_bytes: int


@dataclass(frozen=True)
class UpdateFact:
    """A subscriber's last update. `lag_s`: from the announcement (the mover's clock) until it was served, 0 if unknown."""

    version: int
    fetched_bytes: int
    lag_s: float = 0.0
    fetch_s: float = 0.0
    decode_s: float = 0.0
    stage_s: float = 0.0
    pause_s: float = 0.0
    verify_s: float = 0.0


@dataclass(frozen=True)
class SubscriberFact:
    """What a subscriber said last."""

    name: str
    region: str
    engine: str
    channel: str
    held: int = 0
    served: int = 0
    sequence: int = 0
    stage: str = ""
    fetched_bytes: int = 0
    update: UpdateFact | None = None
    error_kind: str = ""
    error: str = ""
    registered_s: float = 0.0
    seen_s: float = 0.0

    @property
    def failing(self) -> bool:
        """Whether its last update failed."""
        return bool(self.error_kind) or self.stage == "failed"


@dataclass(frozen=True)
class RunFacts:
    """A run as it was seen at `now_s`. `versions` are the newest, ascending. `subscribers` is None where nobody was there to ask."""

    run: str
    now_s: float
    channels: tuple[ChannelFact, ...]
    versions: tuple[VersionFact, ...]
    subscribers: tuple[SubscriberFact, ...] | None

    def channel(self, name: str) -> ChannelFact | None:
        """The channel of that name; for `version-N`, as who serves a fixed version says, what that demands."""
        found = next((channel for channel in self.channels if channel.channel == name), None)
        number = name.removeprefix(FIXED)
        if found is None and name.startswith(FIXED) and number.isascii() and number.isdigit():
            return ChannelFact(name, int(number), 0, 0, 0.0, "")
        return found


@dataclass(frozen=True)
class Lag:
    """How far a subscriber is behind its channel: `versions` committed ones, for `seconds`; both 0 when it serves what is demanded."""

    versions: int = 0
    seconds: float = 0.0

    @property
    def behind(self) -> bool:
        """Whether it does not serve what its channel demands."""
        return self.versions > 0 or self.seconds > 0


def lag(facts: RunFacts, subscriber: SubscriberFact) -> Lag:
    """Behind since the first move that it missed; where the channel went back (a rollback) it is one version behind until it follows."""
    channel = facts.channel(subscriber.channel)
    if channel is None or channel.version in (0, subscriber.served):
        return Lag()
    missed = [v for v in facts.versions if subscriber.served < v.version <= channel.version]
    known = bool(facts.versions) and facts.versions[0].version <= subscriber.served
    versions = len(missed) if known else channel.version - subscriber.served
    since_s = min([channel.moved_s, *(v.committed_s for v in missed)]) if channel.channel == "latest" else channel.moved_s
    return Lag(max(1, versions), max(0.001, facts.now_s - max(since_s, subscriber.registered_s)))


@dataclass(frozen=True)
class GroupFact:
    """The subscribers of one channel in one region. Lags and pause are the largest."""

    region: str
    channel: str
    subscribers: int
    below: int
    failing: int
    lag_versions: int
    lag_s: float
    fetched_bytes: int
    pause_s: float


def groups(facts: RunFacts) -> list[GroupFact]:
    """Subscribers by region and channel, by name."""

    def key(subscriber: SubscriberFact) -> tuple[str, str]:
        return subscriber.region, subscriber.channel

    found = sorted(facts.subscribers or (), key=key)
    return [_group(facts, region, channel, list(members)) for (region, channel), members in groupby(found, key)]


def _group(facts: RunFacts, region: str, channel: str, members: list[SubscriberFact]) -> GroupFact:
    lags = [lag(facts, member) for member in members]
    return GroupFact(
        region,
        channel,
        subscribers=len(members),
        below=sum(one.behind for one in lags),
        failing=sum(member.failing for member in members),
        lag_versions=max(one.versions for one in lags),
        lag_s=max(one.seconds for one in lags),
        fetched_bytes=sum(member.fetched_bytes for member in members),
        pause_s=max(member.update.pause_s if member.update else 0.0 for member in members),
    )


def to_json(facts: RunFacts, alarms: Iterable[Any] = ()) -> dict[str, Any]:
    """As `status --json` shows it. Units are in the names; times are UNIX seconds."""
    subscribers = None
    if facts.subscribers is not None:
        subscribers = [_with_lag(facts, subscriber) for subscriber in facts.subscribers]
    return {
        "run": facts.run,
        "now_s": facts.now_s,
        "channels": [asdict(channel) for channel in facts.channels],
        "versions": [{**asdict(version), "lanes": version.lanes or None} for version in facts.versions],
        "subscribers": subscribers,
        "regions": [asdict(group) for group in groups(facts)],
        "alarms": [asdict(alarm) for alarm in alarms],
    }


def _with_lag(facts: RunFacts, subscriber: SubscriberFact) -> dict[str, Any]:
    found = lag(facts, subscriber)
    return {**asdict(subscriber), "lag_versions": found.versions, "lag_s": found.seconds}
