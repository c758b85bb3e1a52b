"""Publishing what appears in a directory, for ever; after each commit the control plane is given notice."""

import logging
from collections.abc import Callable
from contextlib import ExitStack

from weightsync.clock import SYSTEM, Clock, jitter
from weightsync.daemon.hints import ControlPlane, Notices, working
from weightsync.daemon.process import Process
from weightsync.errors import Corrupt, Invalid, NotFound, Unavailable, Unsupported, WeightsyncError
from weightsync.format.keys import LATEST
from weightsync.format.versions import Form
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.result import Published
from weightsync.publisher.watch import Found, Watcher
from weightsync.telemetry import names
from weightsync.telemetry.alarms import USUAL, Thresholds, history_alarms
from weightsync.telemetry.facts import VersionFact
from weightsync.telemetry.health import Condition

logger = logging.getLogger(__name__)

MAX_WAIT_S = 15.0
OWN_ALARMS = ("unchanged", "unusual_change", "failing")

Told = Callable[[Found, Published], None]
Complaint = Callable[[WeightsyncError], None]


class WatchingPublisher:
    """One publisher's main loop. `on_published` and `on_error` are told what happens."""

    def __init__(
        self,
        process: Process,
        publisher: Publisher,
        watcher: Watcher,
        *,
        run: str,
        note: str = "",
        interval_s: float = 2.0,
        plane: ControlPlane | None = None,
        on_published: Told | None = None,
        on_error: Complaint | None = None,
        limits: Thresholds | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._process, self._publisher, self._watcher, self._run = process, publisher, watcher, run
        self._note, self._interval_s, self._plane = note, interval_s, plane
        self._on_published, self._on_error = on_published, on_error
        self._limits, self._clock = limits or Thresholds(), clock
        self._refused: set[str] = set()
        self._history: list[VersionFact] = []
        self._failing = False
        self._notices: Notices | None = None
        self._board = process.board
        process.ready_when(self.ready)

    def run(self) -> None:
        """Until told to end, after the checkpoint in flight. Raises `Fenced`, `Conflict` and what else cannot mend itself."""
        self._board.set(names.PUBLISHED, self._publisher.version)
        with ExitStack() as stack:
            if self._plane is not None:
                self._connect(self._plane, stack)
            wait_s = self._interval_s
            while not self._process.bell.is_set():
                self._process.beat()
                wait_s = self._interval_s if self._once() else min(MAX_WAIT_S, 2 * wait_s)
                self._show()
                if not self._failing:
                    self._process.tell_ready(f"version {self._publisher.version} is committed")
                self._process.bell.wait(wait_s if wait_s == self._interval_s else wait_s / 2 + jitter(wait_s))

    def _connect(self, plane: ControlPlane, stack: ExitStack) -> None:
        def sent(ok: bool) -> None:
            self._board.add(names.NOTICES, labels=("sent" if ok else "failed",))

        self._notices = Notices(plane, self._run, LATEST, sent)
        stack.enter_context(working(plane, self._notices))

    def _once(self) -> bool:
        """Publishes what is ready, until told to end. False when the store or a disk is not to be had: wait longer."""
        try:
            for found in self._watcher.look():
                if found.stamp not in self._refused and not self._process.bell.is_set():
                    self._publish(found)
        except Unavailable as error:
            self._failing = True
            self._complain(error)
            return False
        self._failing = False
        return True

    def _publish(self, found: Found) -> None:
        self._process.in_flight = f"version {self._publisher.version + 1}"
        try:
            published = self._publisher.publish_checkpoint(found.path, step=found.step, note=self._note)
        except (Invalid, Corrupt, Unsupported, NotFound) as error:  # the checkpoint's fault: others may still be good
            self._refused.add(found.stamp)
            self._board.add(names.REFUSED)
            self._complain(error)
            return
        finally:
            self._process.in_flight = ""
        if self._notices is not None:
            self._notices.tell()
        self._watcher.published(found)
        self._count(published)
        if self._on_published is not None:
            self._on_published(found, published)

    def _complain(self, error: WeightsyncError) -> None:
        self._process.failed(error)
        logger.warning("not published: %s", error)
        if self._on_error is not None:
            self._on_error(error)

    def _count(self, published: Published) -> None:
        self._process.beat()
        board, now_s = self._board, self._clock.now_s()
        fact = VersionFact(
            published.version,
            published.step,
            now_s,
            epoch=0,
            snapshot=published.form is Form.SNAPSHOT,
            changed_lanes=published.changed_lanes,
            lanes=published.lanes,
            payload_bytes=published.payload_bytes,
            checkpoint_bytes=published.checkpoint_bytes,
        )
        self._history = [*self._history[-USUAL:], fact]
        board.set(names.PUBLISHED, published.version)
        board.set(names.PUBLISHED_AT, now_s)
        board.set(names.CHANGED, published.changed_fraction)
        board.add(names.VERSIONS, labels=(published.form.value,))
        board.add(names.UPLOADED, published.total_bytes)
        board.add(names.CHECKPOINT_BYTES, published.checkpoint_bytes)
        board.observe(names.PUBLISH_S, sum(published.seconds.values()))
        logger.info("published", extra={"fields": {"version": published.version, "step": published.step, "bytes": published.total_bytes}})

    def _show(self) -> None:
        raised = {alarm.alarm for alarm in history_alarms(self._history, self._limits)} | ({"failing"} if self._failing else set())
        self._board.replace(names.ALARM, {(alarm,): float(alarm in raised) for alarm in OWN_ALARMS})

    def ready(self) -> Condition:
        """Ready: the run is ours, and the last look ended well."""
        if self._failing:
            return Condition(False, "the store or a disk is not to be had")
        return Condition(True, f"version {self._publisher.version} is committed")
