"""A run's facts as tables for people. Pure."""

from collections.abc import Iterator, Sequence

from weightsync.cli import words
from weightsync.cli.output import Row, table_lines
from weightsync.telemetry.alarms import Alarm
from weightsync.telemetry.facts import GroupFact, RunFacts, SubscriberFact, VersionFact, groups, lag

SHOWN_VERSIONS = 8
SHOWN_SUBSCRIBERS = 40  # of a larger fleet, those that are worst


def lines(facts: RunFacts, alarms: Sequence[Alarm]) -> Iterator[str]:
    """All of it, line by line."""
    newest = facts.versions[-1] if facts.versions else None
    yield f"run {facts.run}: " + (
        f"version {newest.version}, {words.age(facts.now_s - newest.committed_s)} old" if newest else "no version yet"
    )
    for alarm in alarms:
        yield f"ALARM {alarm.alarm}: {alarm.detail}"
    yield ""
    yield from _table(("channel", "version", "sequence", "moved", "by", "why"), list(_channels(facts)), left=1)
    yield ""
    yield from _table(
        ("version", "step", "changed", "payload", "ratio", "age"), [_version(facts, v) for v in facts.versions[-SHOWN_VERSIONS:]]
    )
    yield ""
    if facts.subscribers is None:
        yield "subscribers: not known without a control plane (--server)"
        return
    yield from _table(
        ("region", "channel", "subscribers", "below", "failing", "behind", "for", "fetched", "pause"),
        [_group(one) for one in groups(facts)],
        left=2,
    )
    if facts.subscribers:
        yield ""
        yield from _subscribers(facts, facts.subscribers)


def _table(columns: Row, rows: Sequence[Row], left: int = 0) -> list[str]:
    return table_lines([column.upper() for column in columns], rows, left=left) if rows else [f"no {columns[0]}s"]


def _channels(facts: RunFacts) -> Iterator[Row]:
    for channel in facts.channels:
        age = words.age(facts.now_s - channel.moved_s)
        yield channel.channel, str(channel.version or "-"), str(channel.sequence), age, channel.who, channel.why or "-"


def _version(facts: RunFacts, version: VersionFact) -> Row:
    if version.snapshot:
        changed = "all"
    elif version.lanes:
        changed = words.percent(version.changed_lanes, version.lanes)
    else:
        changed = f"{version.changed_lanes:,}"
    return (
        str(version.version),
        "-" if version.step is None else str(version.step),
        changed,
        words.size(version.payload_bytes),
        words.ratio(version.checkpoint_bytes, version.payload_bytes),
        words.age(facts.now_s - version.committed_s),
    )


def _group(group: GroupFact) -> Row:
    return (
        group.region or "-",
        group.channel,
        str(group.subscribers),
        str(group.below or "-"),
        str(group.failing or "-"),
        str(group.lag_versions or "-"),
        words.seconds(group.lag_s) if group.lag_s else "-",
        words.size(group.fetched_bytes),
        words.seconds(group.pause_s) if group.pause_s else "-",
    )


def _subscribers(facts: RunFacts, subscribers: Sequence[SubscriberFact]) -> Iterator[str]:
    worst = sorted(subscribers, key=lambda one: (-lag(facts, one).seconds, not one.failing, one.name))
    rows = [_subscriber(facts, one) for one in worst[:SHOWN_SUBSCRIBERS]]
    yield from _table(
        ("subscriber", "region", "channel", "serves", "behind", "for", "stage", "update", "pause", "heard", "error"), rows, left=3
    )
    if len(worst) > SHOWN_SUBSCRIBERS:
        yield f"and {len(worst) - SHOWN_SUBSCRIBERS} more that are better off"


def _subscriber(facts: RunFacts, one: SubscriberFact) -> Row:
    behind, update = lag(facts, one), one.update
    return (
        one.name,
        one.region or "-",
        one.channel,
        str(one.served or "-"),
        str(behind.versions or "-"),
        words.seconds(behind.seconds) if behind.behind else "-",
        one.stage or "-",
        words.seconds(update.fetch_s + update.decode_s + update.stage_s) if update else "-",
        words.seconds(update.pause_s) if update and update.pause_s else "-",
        words.age(facts.now_s - one.seen_s),
        one.error_kind or "-",
    )
