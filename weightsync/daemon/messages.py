"""The fleet's messages as facts, and back. Pure."""

from weightsync.telemetry.facts import ChannelFact, SubscriberFact, UpdateFact, VersionFact
from weightsync.v1 import fleet_pb2, version_pb2

_STAGES = {number: name.removeprefix("STAGE_").lower() for name, number in fleet_pb2.Stage.items()}
_NUMBERS = {name: number for number, name in _STAGES.items()}
_UNSAID = "unspecified"

MAX_ERROR_CHARS = 512


def channel_fact(message: version_pb2.Channel) -> ChannelFact:
    """Where a channel points."""
    move = message.move
    expires_ms = move.expires_ms if move.HasField("expires_ms") else None
    if expires_ms is not None and message.HasField("renewal"):
        expires_ms = max(expires_ms, message.renewal.expires_ms)
    return ChannelFact(
        move.channel,
        move.version,
        move.sequence,
        move.epoch,
        move.created_ms / 1000,
        move.who,
        move.why,
        None if expires_ms is None else expires_ms / 1000,
    )


def version_fact(message: version_pb2.Version, committed_ms: int) -> VersionFact:
    """A version; its number of lanes is not in the message."""
    return VersionFact(
        message.version,
        message.step if message.HasField("step") else None,
        committed_ms / 1000,
        message.epoch,
        snapshot=message.base == 0,
        changed_lanes=message.changed_lanes,
        lanes=0,
        payload_bytes=message.payload_bytes,
        checkpoint_bytes=message.checkpoint_bytes,
    )


def subscriber_fact(message: fleet_pb2.Subscriber) -> SubscriberFact:
    """A subscriber as the server knows it."""
    report = message.report
    stage = _STAGES.get(report.stage, _UNSAID)
    return SubscriberFact(
        message.name,
        message.region,
        message.engine,
        message.channel,
        held=report.held_version,
        served=report.served_version,
        sequence=report.sequence,
        stage="" if stage == _UNSAID else stage,
        fetched_bytes=report.fetched_bytes,
        update=_update(report.last_update) if report.HasField("last_update") else None,
        error_kind=report.error_kind,
        error=report.error,
        registered_s=message.registered_ms / 1000,
        seen_s=message.seen_ms / 1000,
    )


def report_of(fact: SubscriberFact) -> fleet_pb2.SubscriberReport:
    """What a subscriber says of itself."""
    report = fleet_pb2.SubscriberReport(
        held_version=fact.held,
        served_version=fact.served,
        sequence=fact.sequence,
        stage=_NUMBERS.get(fact.stage or _UNSAID, 0),  # type: ignore[arg-type]  # the generated stubs want the enumeration's own type
        fetched_bytes=fact.fetched_bytes,
        error_kind=fact.error_kind,
        error=fact.error[:MAX_ERROR_CHARS],
    )
    if fact.update is not None:
        update = fact.update
        report.last_update.version, report.last_update.fetched_bytes = update.version, update.fetched_bytes
        report.last_update.lag_us, report.last_update.fetch_us = _us(update.lag_s), _us(update.fetch_s)
        report.last_update.decode_us, report.last_update.stage_us = _us(update.decode_s), _us(update.stage_s)
        report.last_update.pause_us, report.last_update.verify_us = _us(update.pause_s), _us(update.verify_s)
    return report


def _update(message: fleet_pb2.UpdateTimings) -> UpdateFact:
    return UpdateFact(
        message.version,
        message.fetched_bytes,
        message.lag_us / 1e6,
        message.fetch_us / 1e6,
        message.decode_us / 1e6,
        message.stage_us / 1e6,
        message.pause_us / 1e6,
        message.verify_us / 1e6,
    )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
