"""Which versions stay, and why. Pure: everything comes in as an argument.

A version stays while it is one of the `keep` highest numbers, the newest of one of the last `hourly` hours or `daily` days, pinned, where a
channel points, or leased. A lease counts until its expiry plus the grace time, so that it outlives an absent control plane. What the chains
of these versions need stays as well, but nobody may ask for it: see `chains`.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from weightsync.errors import Invalid
from weightsync.format.operators import Lease, Pin

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True)
class Policy:
    """`keep` highest numbers; one version of each of the last `hourly` hours and `daily` days (UTC). `grace_ms`: from mark to deletion."""

    keep: int
    hourly: int = 0
    daily: int = 0
    grace_ms: int = DAY_MS

    def __post_init__(self) -> None:
        if self.keep < 1 or min(self.hourly, self.daily, self.grace_ms) < 0:
            raise Invalid("a policy keeps at least one version, and its times are not negative", remedy="see `weightsync gc --help`")

    def to_body(self) -> dict[str, int]:
        """JSON form."""
        return {"daily": self.daily, "grace_ms": self.grace_ms, "hourly": self.hourly, "keep": self.keep}


@dataclass(frozen=True)
class Wishes:
    """What others want kept. `channels`: where each points."""

    channels: Mapping[str, int] = field(default_factory=dict)
    pins: Sequence[Pin] = ()
    leases: Sequence[Lease] = ()


def decide(
    policy: Policy, committed: Mapping[int, int], wishes: Wishes, now_ms: int, *, gone: Container[int] = ()
) -> dict[int, tuple[str, ...]]:
    """The versions that stay, each with all its reasons. `committed`: when each committed version was committed, in milliseconds.

    Those that are `gone` (condemned) count among the highest, but nothing brings them back; what else is wished for is left out too.
    """
    reasons: dict[int, list[str]] = {}

    def stays(version: int, why: str) -> None:
        if version in committed and version not in gone:
            reasons.setdefault(version, []).append(why)

    for rank, version in enumerate(sorted(committed, reverse=True)[: policy.keep], 1):
        stays(version, f"{rank} of the {policy.keep} highest")
    for version, why in _spaced(policy, {v: ms for v, ms in committed.items() if v not in gone}, now_ms):
        stays(version, why)
    for name, version in sorted(wishes.channels.items()):
        stays(version, f"channel {name!r} points to it")
    for pin in wishes.pins:
        stays(pin.version, f"pinned by {pin.who}" + (f": {pin.why}" if pin.why else ""))
    for lease in sorted(wishes.leases, key=lambda lease: lease.holder):
        if lease.expires_ms + policy.grace_ms > now_ms:
            stays(lease.version, f"lease {lease.holder!r} until {_stamp(lease.expires_ms)}")
    return {version: tuple(reasons[version]) for version in sorted(reasons)}


def _spaced(policy: Policy, committed: Mapping[int, int], now_ms: int) -> list[tuple[int, str]]:
    """The newest version of each hour and day that counts."""
    found = []
    for span_ms, count, name, shape in ((HOUR_MS, policy.hourly, "hour", "%Y-%m-%dT%H"), (DAY_MS, policy.daily, "day", "%Y-%m-%d")):
        newest: dict[int, int] = {}
        for version in sorted(committed):
            newest[committed[version] // span_ms] = version
        latest = now_ms // span_ms
        found += [
            (version, f"newest of the {name} {datetime.fromtimestamp(bucket * span_ms / 1000, UTC).strftime(shape)}")
            for bucket, version in newest.items()
            if latest - count < bucket
        ]
    return found


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
