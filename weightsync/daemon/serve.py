"""Running the control plane's server, and showing the runs that it serves as metrics."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from weightsync.catalog import Catalog
from weightsync.clock import SYSTEM, Clock, jitter
from weightsync.daemon.messages import subscriber_fact
from weightsync.daemon.observe import StoreObserver
from weightsync.daemon.process import Process
from weightsync.errors import NotFound, WeightsyncError
from weightsync.telemetry import names
from weightsync.telemetry.alarms import Thresholds, alarms
from weightsync.telemetry.facts import RunFacts, groups
from weightsync.telemetry.health import Condition
from weightsync.telemetry.metrics import Board, Labels
from weightsync.telemetry.names import ALARMS, Metric
from weightsync.v1 import fleet_pb2

logger = logging.getLogger(__name__)

OBSERVE_S = 10.0
TURN_S = 1.0  # how often the event loop shows that it turns

Fleets = dict[str, list[fleet_pb2.Subscriber]]


class Server(Protocol):
    """The part of `ControlServer` that is needed here."""

    async def start(self) -> str:
        """Listens; where."""
        ...

    async def stop(self) -> None:
        """Drains."""
        ...

    def fleets(self) -> Fleets:
        """Subscribers of the runs that are open, by run."""
        ...


class ServingLoop:
    """One server's main loop. `runs`: those to show besides the ones that somebody has asked for."""

    def __init__(
        self,
        process: Process,
        make: Callable[[], Server],
        open_catalog: Callable[[str], Catalog],
        *,
        runs: Collection[str] = (),
        on_listening: Callable[[str], None] | None = None,
        limits: Thresholds | None = None,
        observe_s: float = OBSERVE_S,
        clock: Clock = SYSTEM,
    ) -> None:
        """`make` is called on the event loop."""
        self._process, self._make, self._open_catalog = process, make, open_catalog
        self._runs, self._on_listening = frozenset(runs), on_listening
        self._limits, self._observe_s, self._clock = limits or Thresholds(), observe_s, clock
        self._observers: dict[str, StoreObserver] = {}
        self._facts: dict[str, RunFacts] = {}
        self._listening = ""
        process.ready_when(self.ready)

    def run(self) -> None:
        """Until the process is told to end; then it drains. Raises `Unavailable` when the address cannot be had."""
        asyncio.run(self._serve())

    def ready(self) -> Condition:
        """Ready: it listens. With the store away it still passes on what it knows."""
        return Condition(bool(self._listening), f"listening on {self._listening}" if self._listening else "not listening yet")

    async def _serve(self) -> None:
        server = self._make()
        address = await server.start()
        observing = asyncio.create_task(self._observe(server))
        try:
            self._listening = address
            self._process.tell_ready(f"listening on {address}")
            if self._on_listening is not None:
                self._on_listening(address)
            while not self._process.bell.is_set():
                self._process.beat()
                await asyncio.to_thread(self._process.bell.wait, TURN_S)
        finally:
            self._listening = ""
            observing.cancel()
            await server.stop()

    async def _observe(self, server: Server) -> None:
        while True:
            await asyncio.to_thread(self._look, server.fleets())
            await asyncio.sleep(self._observe_s / 2 + jitter(self._observe_s))

    def _look(self, fleets: Fleets) -> None:
        wanted = self._runs | set(fleets)
        for gone in set(self._observers) - wanted:
            del self._observers[gone]
        self._facts = {run: facts for run, facts in self._facts.items() if run in wanted}
        for run in sorted(wanted):
            try:
                if run not in self._observers:
                    self._observers[run] = StoreObserver(self._open_catalog(run), clock=self._clock)
                self._facts[run] = self._observers[run].look([subscriber_fact(one) for one in fleets.get(run, [])])
            except NotFound:
                self._facts.pop(run, None)  # nobody has published yet
            except WeightsyncError as error:
                self._process.board.add(names.ERRORS, labels=(error.kind,))
                logger.warning("run %s cannot be looked at: %s", run, error)
        show(self._process.board, self._facts.values(), self._limits)


def show(board: Board, seen: Iterable[RunFacts], limits: Thresholds) -> None:
    """Brings the control plane's gauges to what was seen."""
    rows: dict[Metric, dict[Labels, float]] = {metric: {} for metric in names.SERVER}
    for facts in seen:
        run = facts.run
        rows[names.OBSERVED][run,] = facts.now_s
        for channel in facts.channels:
            rows[names.CHANNEL_VERSION][run, channel.channel] = channel.version
            rows[names.CHANNEL_SEQUENCE][run, channel.channel] = channel.sequence
            rows[names.CHANNEL_MOVED][run, channel.channel] = channel.moved_s
        if facts.versions:
            rows[names.NEWEST][run,] = facts.versions[-1].version
            rows[names.NEWEST_AT][run,] = facts.versions[-1].committed_s
        for group in groups(facts):
            key = run, group.region, group.channel
            rows[names.FLEET][key] = group.subscribers
            rows[names.FLEET_BELOW][key] = group.below
            rows[names.FLEET_FAILED][key] = group.failing
            rows[names.FLEET_LAG_VERSIONS][key] = group.lag_versions
            rows[names.FLEET_LAG_S][key] = group.lag_s
            rows[names.FLEET_BYTES][key] = group.fetched_bytes
            rows[names.FLEET_PAUSE_S][key] = group.pause_s
        raised = {alarm.alarm for alarm in alarms(facts, limits)}
        rows[names.RUN_ALARM].update({(run, alarm): float(alarm in raised) for alarm in ALARMS})
    for metric, values in rows.items():
        board.replace(metric, values)
