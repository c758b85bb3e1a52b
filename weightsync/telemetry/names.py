"""Every metric that a weightsync process exports, in one table. All names begin with `weightsync_`; units are in the names.

Counters get the suffix `_total` when they are exposed, as OpenMetrics wants it. Values are since the start of the process.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

PREFIX = "weightsync_"

_UPDATE_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_PAUSE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True)
class Metric:
    """One metric. `labels` are its label names; `seeds` label values whose series exist from the start, so that a first increase shows."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()
    seeds: tuple[tuple[str, ...], ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def sample(self) -> str:
        """The name under which its value is exposed (that of a histogram: without `_bucket`, `_sum`, `_count`)."""
        return f"{PREFIX}{self.name}_total" if self.kind == "counter" else f"{PREFIX}{self.name}"


ALARMS = ("behind_s", "behind_versions", "below_channel", "unchanged", "unusual_change", "silent", "expired", "failing")

# Every daemon.
BUILD = Metric("build_info", "gauge", "1, with the version of the program and its part.", ("version", "role"))
STARTED = Metric("start_time_seconds", "gauge", "When the process started, UNIX time.")
READY = Metric("ready", "gauge", "1 when /readyz answers 200.")
ERRORS = Metric(
    "errors",
    "counter",
    "Failed steps by kind of error.",
    ("kind",),
    (("unavailable",), ("corrupt",), ("no_space",), ("conflict",), ("dirty",)),
)
ALARM = Metric("alarm", "gauge", "1 while an alarm is raised; `weightsync status` says it in words.", ("alarm",))

# Subscriber.
SERVED = Metric("subscriber_served_version", "gauge", "The version that is served; 0 for none.")
DEMANDED = Metric("subscriber_demanded_version", "gauge", "The version that the channel demands; 0 for none.")
SEQUENCE = Metric("subscriber_sequence", "gauge", "Sequence of the channel's move that was accepted.")
LAG_VERSIONS = Metric("subscriber_lag_versions", "gauge", "Versions between the served one and the channel's.")
LAG_S = Metric(
    "subscriber_lag_seconds", "gauge", "How long the channel has demanded another version than the served one; 0 if it does not."
)
STALE = Metric("subscriber_stale", "gauge", "1 while the channel's head has expired: nothing newer is accepted.")
POLLED = Metric("subscriber_last_poll_time_seconds", "gauge", "When the channel was last looked at with success, UNIX time.")
FETCHED = Metric("subscriber_fetched_bytes", "counter", "Bytes downloaded from the store.")
CACHED = Metric("subscriber_cached_bytes", "counter", "Bytes taken from the local cache of verified objects instead.")
UPDATES = Metric("subscriber_updates", "counter", "Versions that were reached.")
UPDATE_S = Metric("subscriber_update_seconds", "histogram", "From the start of an update until it is served.", buckets=_UPDATE_S)
PHASE_S = Metric(
    "subscriber_phase_seconds",
    "counter",
    "Time spent in the phases of updates.",
    ("phase",),
    (("path",), ("fetch",), ("apply",), ("mark",), ("stage",), ("pause",), ("verify",)),
)
PAUSE_S = Metric("subscriber_pause_seconds", "histogram", "How long the engine did not generate.", buckets=_PAUSE_S)
WATCHING = Metric("subscriber_watching", "gauge", "1 while the control plane's watch is connected, 0 while only polling.")
REPORTS = Metric("subscriber_reports", "counter", "Reports to the control plane by outcome.", ("outcome",), (("sent",), ("failed",)))

# Publisher.
PUBLISHED = Metric("publisher_version", "gauge", "The version that was committed last.")
PUBLISHED_AT = Metric("publisher_last_commit_time_seconds", "gauge", "When this process committed last, UNIX time; 0 before.")
VERSIONS = Metric("publisher_versions", "counter", "Committed versions by form.", ("form",), (("delta",), ("snapshot",)))
REFUSED = Metric("publisher_refused_checkpoints", "counter", "Checkpoints that could not be published.")
UPLOADED = Metric("publisher_uploaded_bytes", "counter", "Bytes added to the store.")
CHECKPOINT_BYTES = Metric("publisher_checkpoint_bytes", "counter", "Bytes of the checkpoints that were published.")
CHANGED = Metric("publisher_changed_ratio", "gauge", "Changed values over all values in the last version.")
PUBLISH_S = Metric("publisher_publish_seconds", "histogram", "From the start of a publish until it is committed.", buckets=_UPDATE_S)
NOTICES = Metric("publisher_notices", "counter", "Notices to the control plane by outcome.", ("outcome",), (("sent",), ("failed",)))

# Control plane: a view of one run.
CHANNEL_VERSION = Metric("channel_version", "gauge", "The version that a channel points to.", ("run", "channel"))
CHANNEL_SEQUENCE = Metric("channel_sequence", "gauge", "The sequence of a channel's last move.", ("run", "channel"))
CHANNEL_MOVED = Metric(
    "channel_moved_time_seconds", "gauge", "When a channel was last moved, UNIX time, by the mover's clock.", ("run", "channel")
)
NEWEST = Metric("run_newest_version", "gauge", "The highest committed version.", ("run",))
NEWEST_AT = Metric("run_newest_commit_time_seconds", "gauge", "When it was committed, UNIX time, by the publisher's clock.", ("run",))
FLEET = Metric("fleet_subscribers", "gauge", "Subscribers heard of lately.", ("run", "region", "channel"))
FLEET_BELOW = Metric(
    "fleet_below_channel", "gauge", "Subscribers that do not serve what their channel demands.", ("run", "region", "channel")
)
FLEET_FAILED = Metric("fleet_failing", "gauge", "Subscribers whose last update failed.", ("run", "region", "channel"))
FLEET_LAG_VERSIONS = Metric("fleet_lag_versions", "gauge", "The largest lag of a subscriber, in versions.", ("run", "region", "channel"))
FLEET_LAG_S = Metric("fleet_lag_seconds", "gauge", "The largest lag of a subscriber, in seconds.", ("run", "region", "channel"))
FLEET_BYTES = Metric(
    "fleet_fetched_bytes", "gauge", "Bytes that the subscribers downloaded since each of them started.", ("run", "region", "channel")
)
FLEET_PAUSE_S = Metric("fleet_pause_seconds", "gauge", "The longest last pause of an engine.", ("run", "region", "channel"))
RUN_ALARM = Metric("run_alarm", "gauge", "1 while an alarm of a run is raised.", ("run", "alarm"))
OBSERVED = Metric("observed_time_seconds", "gauge", "When the run was last looked at with success, UNIX time.", ("run",))

# Rollout worker.
SANDBOX_START_S = Metric(
    "sandbox_start_seconds", "histogram", "From asking for a sandbox until it takes orders; not the wait for a turn.", buckets=_PAUSE_S
)

COMMON = (BUILD, STARTED, READY, ERRORS, ALARM)
SUBSCRIBER = (
    *(SERVED, DEMANDED, SEQUENCE, LAG_VERSIONS, LAG_S, STALE, POLLED, FETCHED, CACHED),
    *(UPDATES, UPDATE_S, PHASE_S, PAUSE_S, WATCHING, REPORTS),
)
PUBLISHER = (PUBLISHED, PUBLISHED_AT, VERSIONS, REFUSED, UPLOADED, CHECKPOINT_BYTES, CHANGED, PUBLISH_S, NOTICES)
SERVER = (
    *(CHANNEL_VERSION, CHANNEL_SEQUENCE, CHANNEL_MOVED, NEWEST, NEWEST_AT, OBSERVED, RUN_ALARM),
    *(FLEET, FLEET_BELOW, FLEET_FAILED, FLEET_LAG_VERSIONS, FLEET_LAG_S, FLEET_BYTES, FLEET_PAUSE_S),
)
SANDBOXES = (SANDBOX_START_S,)
