"""Following a channel for ever: polls, looks at once when the control plane says so, shows and reports what it does.

The data path is `Subscriber` alone. Hints come from threads of their own and only ring the bell; without any, the next poll finds the same.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from weightsync.clock import SYSTEM, Clock, jitter
from weightsync.daemon.hints import ControlPlane, Reporter, Watch, working
from weightsync.daemon.process import Process
from weightsync.errors import WeightsyncError
from weightsync.format.refs import VersionRef
from weightsync.subscriber.follow import Demand, Step, Subscriber
from weightsync.telemetry import names
from weightsync.telemetry.alarms import Thresholds, alarms
from weightsync.telemetry.facts import FIXED, ChannelFact, RunFacts, SubscriberFact, UpdateFact, lag
from weightsync.telemetry.health import Condition

logger = logging.getLogger(__name__)

OWN_ALARMS = ("behind_s", "behind_versions", "expired", "failing")


@dataclass(frozen=True)
class FollowSettings:
    """`interval_s`: mean seconds between polls. `spread_s`: a start and a look after a hint come at a random time within it."""

    run: str
    channel: str
    name: str
    region: str = ""
    engine: str = "directory"
    interval_s: float = 2.0
    spread_s: float = 0.5


def readiness(demand: Demand | None, served: VersionRef | None) -> Condition:
    """Ready: what the channel demands, as far as it was verified, is what is served. Pure.

    A channel that went back demands the older version: who still serves the newer one is not ready.
    """
    if demand is None:
        return Condition(False, "the channel has not been looked at yet")
    if demand.version is None:
        return Condition(False, "the channel points to no version yet")
    if served is None:
        return Condition(False, f"nothing is served yet; the channel demands version {demand.version.version}")
    if served != demand.version:
        return Condition(False, f"version {served.version} is served; the channel demands version {demand.version.version}")
    return Condition(True, f"version {served.version} is served")


class Follower:
    """One subscriber's main loop. `on_step` is told what each look led to."""

    def __init__(
        self,
        process: Process,
        subscriber: Subscriber,
        settings: FollowSettings,
        *,
        plane: ControlPlane | None = None,
        on_step: Callable[[Step], None] | None = None,
        limits: Thresholds | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._process, self._subscriber, self._settings, self._plane = process, subscriber, settings, plane
        self._on_step, self._limits, self._clock = on_step, limits or Thresholds(), clock
        self._board = process.board
        self._fact = SubscriberFact(settings.name, settings.region, settings.engine, settings.channel, registered_s=clock.now_s())
        self._reporter: Reporter | None = None
        self._sequence = -1  # of the last look; a hint about it is no news
        self._stale = False
        subscriber.progress = self._progress
        process.on_scrape(self._refresh)
        process.ready_when(self.ready)

    def run(self) -> None:
        """Until the process is told to end."""
        spread_s = min(self._settings.spread_s, self._settings.interval_s)
        self._say()
        with ExitStack() as stack:
            if self._plane is not None:
                self._connect(self._plane, stack)
            self._process.bell.wait(jitter(spread_s))
            self._subscriber.run(
                _Looks(self._process, spread_s), interval_s=self._settings.interval_s, on_step=self._went, on_error=self._failed
            )

    def _progress(self, done: int, total: int) -> None:
        """Downloads are signs of life."""
        self._process.beat()
        demand = self._subscriber.demand
        self._process.in_flight = f"version {demand.version.version}" if demand and demand.version else ""
        if done < total and self._fact.stage != "fetch":
            self._say(stage="fetch")

    def _connect(self, plane: ControlPlane, stack: ExitStack) -> None:
        settings, board, spread_s = self._settings, self._board, self._settings.spread_s

        def sent(ok: bool) -> None:
            board.add(names.REPORTS, labels=("sent" if ok else "failed",))

        self._reporter = Reporter(plane, settings.run, self._fact, sent, spread_s=spread_s)
        workers: list[Reporter | Watch] = [self._reporter]
        if not settings.channel.startswith(FIXED):  # a fixed version does not move
            watching = lambda on: board.set(names.WATCHING, on)  # noqa: E731
            workers.append(Watch(plane, settings.run, settings.channel, self._hinted, watching, spread_s=spread_s))
        stack.enter_context(working(plane, *workers))

    def _hinted(self, sequence: int) -> None:
        if sequence > self._sequence:
            self._process.bell.ring()

    def _went(self, step: Step) -> None:
        self._process.beat()
        self._process.in_flight = ""
        self._sequence, self._stale = step.sequence, step.stale
        self._board.set(names.POLLED, self._clock.now_s())
        self._count(step)
        self._say(stage="stale" if step.stale else "idle", sequence=step.sequence, error_kind="", error="")
        ready = self.ready()
        if ready.holds:
            self._process.tell_ready(ready.reason)
        if self._on_step is not None:
            self._on_step(step)

    def _failed(self, error: WeightsyncError) -> None:
        self._process.in_flight = ""
        self._process.failed(error)
        self._say(stage="failed", error_kind=error.kind, error=error.message[:512])

    def _count(self, step: Step) -> None:
        update, phases = step.update, step.phases
        for phase, took_s in phases.items():
            self._board.add(names.PHASE_S, took_s, (phase,))
        if "pause" in phases:
            self._board.observe(names.PAUSE_S, phases["pause"])
        if update is None:
            if phases and self._fact.update is not None:  # an engine that was started anew
                self._fact = replace(self._fact, update=_timed(self._fact.update, phases))
            return
        seconds, board = update.seconds, self._board
        demand = self._subscriber.demand
        lag_s = max(0.0, self._clock.now_s() - demand.moved_ms / 1000) if demand and demand.moved_ms else 0.0
        board.add(names.UPDATES)
        board.add(names.FETCHED, update.bytes_fetched)
        board.add(names.CACHED, update.bytes_cached)
        board.observe(names.UPDATE_S, seconds.total_s)
        own = {"path": seconds.path_s, "fetch": seconds.fetch_s, "apply": seconds.apply_s, "mark": seconds.mark_s}
        for phase, took_s in own.items():
            board.add(names.PHASE_S, took_s, (phase,))
        last = UpdateFact(
            update.version.version,
            update.bytes_fetched,
            lag_s,
            fetch_s=seconds.path_s + seconds.fetch_s,
            decode_s=seconds.apply_s + seconds.mark_s,
        )
        last = _timed(last, phases)
        self._fact = replace(self._fact, fetched_bytes=self._fact.fetched_bytes + update.bytes_fetched, update=last)

    def _say(self, **changes: Any) -> None:
        """Brings fact, gauges and report up to date."""
        served, held = _number(self._subscriber.served), _number(self._subscriber.version)
        before, self._fact = self._fact, replace(self._fact, served=served, held=held, **changes)
        if self._reporter is not None and self._fact != before:
            self._reporter.say(self._fact)

    def ready(self) -> Condition:
        """See `readiness`."""
        return readiness(self._subscriber.demand, self._subscriber.served)

    def facts(self) -> RunFacts:
        """What this host alone knows of its run."""
        demand, now_s = self._subscriber.demand, self._clock.now_s()
        expires_s = now_s if self._stale else None
        channels: tuple[ChannelFact, ...] = ()
        if demand is not None:
            moved_s = demand.moved_ms / 1000
            channels = (ChannelFact(self._fact.channel, _number(demand.version), demand.sequence, 0, moved_s, "", expires_s=expires_s),)
        return RunFacts(self._settings.run, now_s, channels, (), (self._fact,))

    def _refresh(self) -> None:
        facts, board = self.facts(), self._board
        behind = lag(facts, self._fact)
        demanded = facts.channels[0] if facts.channels else None
        board.set(names.SERVED, self._fact.served)
        board.set(names.DEMANDED, demanded.version if demanded else 0)
        board.set(names.SEQUENCE, demanded.sequence if demanded else 0)
        board.set(names.LAG_VERSIONS, behind.versions)
        board.set(names.LAG_S, behind.seconds)
        board.set(names.STALE, self._stale)
        raised = {alarm.alarm for alarm in alarms(facts, self._limits)}
        board.replace(names.ALARM, {(alarm,): float(alarm in raised) for alarm in OWN_ALARMS})


class _Looks:
    """When to look at the channel again: a `Stop` that comes back sooner when the bell rings, at a random time so that not all hosts do."""

    def __init__(self, process: Process, spread_s: float) -> None:
        self._process, self._spread_s = process, spread_s

    def is_set(self) -> bool:
        return self._process.bell.is_set()

    def wait(self, timeout: float) -> bool:
        self._process.beat()
        if not self._process.bell.wait(timeout):
            return False
        return self.is_set() or self._process.bell.wait(jitter(self._spread_s)) or True


def _timed(fact: UpdateFact, phases: Mapping[str, float]) -> UpdateFact:
    """With the seconds of an engine."""
    stage_s, pause_s, verify_s = (phases.get(phase, 0.0) for phase in ("stage", "pause", "verify"))
    return replace(fact, stage_s=stage_s, pause_s=pause_s, verify_s=verify_s)


def _number(ref: VersionRef | None) -> int:
    return ref.version if ref else 0
