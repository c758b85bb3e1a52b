"""What every daemon has: an end, a pulse, metrics, probes, and a service manager that may be listening.

    with Process("subscriber", metrics=names.SUBSCRIBER, address="127.0.0.1:9100") as process:
        process.ready_when(probe)
        while not process.bell.is_set():
            process.beat()
            ...
            process.tell_ready()
            process.bell.wait(2.0)

The first SIGTERM or Ctrl-C ends the loop after what it is doing, and /readyz says so; a second Ctrl-C interrupts it.
"""

import logging
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Self

from weightsync.clock import SYSTEM, Clock
from weightsync.daemon.bell import Bell
from weightsync.errors import WeightsyncError
from weightsync.telemetry import names
from weightsync.telemetry.health import Condition, HealthServer, Probe, parse_address
from weightsync.telemetry.metrics import MISSING, Board, open_board
from weightsync.telemetry.notify import Notifier

logger = logging.getLogger(__name__)

STALL_S = 900.0  # a main loop that has not turned for so long is stuck; fetching and decoding count as turning


class Process:
    """One per process, used in its main thread."""

    def __init__(
        self,
        role: str,
        *,
        metrics: Sequence[names.Metric],
        address: str | None = None,
        version: str = "",
        stall_s: float = STALL_S,
        notifier: Notifier | None = None,
        on_interrupt: Callable[[str], None] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`address`: where /metrics, /healthz and /readyz are served; None: nowhere.

        `on_interrupt` is told, inside the signal handler, what the first Ctrl-C waits for (`in_flight`).
        """
        self.bell = Bell()
        self.in_flight = ""  # what would be finished before an end, for people; empty while the loop waits
        self.board: Board = open_board((*names.COMMON, *metrics))
        self._on_interrupt = on_interrupt
        self._role, self._address, self._version = role, address, version
        self._ready: Probe = lambda: Condition(False, "starting")
        self._stall_s, self._clock = stall_s, clock
        self._notifier = notifier or Notifier()
        self._beat_s = clock.monotonic_s()
        self._told = False
        self._stack = ExitStack()
        self._over = threading.Event()
        self._refreshers: list[Callable[[], None]] = []
        self.listening: tuple[str, int] | None = None

    def beat(self) -> None:
        """The main loop turns. Cheap; call it at every step of long work too."""
        self._beat_s = self._clock.monotonic_s()

    def failed(self, error: WeightsyncError) -> None:
        """Counts a failed step."""
        self.beat()
        self.board.add(names.ERRORS, labels=(error.kind,))
        self._notifier.status(f"{error.kind}: {error.message}")

    def tell_ready(self, status: str = "") -> None:
        """Tells the service manager, once, that this process does what it is there for; `status` each time."""
        if not self._told:
            self._told = True
            self._notifier.ready()
            logger.info("ready", extra={"fields": {"role": self._role, "status": status}})
        if status:
            self._notifier.status(status)

    def ready_when(self, probe: Probe) -> None:
        """What /readyz answers from now on; asked by other threads."""
        self._ready = probe

    def healthy(self) -> Condition:
        """Whether the main loop turns."""
        past_s = self._clock.monotonic_s() - self._beat_s
        if past_s > self._stall_s:
            return Condition(False, f"the main loop has not turned for {past_s:.0f} s")
        return Condition(True, "alive")

    def ready(self) -> Condition:
        """Whether to send anybody here: what the daemon says, and no more once it is ending."""
        condition = Condition(False, "stopping") if self.bell.is_set() else self._ready()
        self.board.set(names.READY, condition.holds)
        return condition

    def page(self) -> bytes | None:
        """The metrics as of now."""
        for refresh in self._refreshers:
            refresh()
        self.ready()
        return self.board.render()

    def on_scrape(self, refresh: Callable[[], None]) -> None:
        """`refresh` is called, by another thread, before the metrics are read: for values that change by themselves, such as ages."""
        self._refreshers.append(refresh)

    def __enter__(self) -> Self:
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGTERM, signal.SIGINT)}
        self._stack.callback(lambda: [signal.signal(number, handler) for number, handler in before.items()])
        with ExitStack() as unwinding:
            unwinding.push(self._stack.__exit__)
            self._start()
            unwinding.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bell.end()
        self._over.set()
        self._notifier.stopping()
        self._stack.close()
        logger.info("stopped", extra={"fields": {"role": self._role}})

    def _start(self) -> None:
        self.board.set(names.BUILD, 1, (self._version, self._role))
        self.board.set(names.STARTED, self._clock.now_s())
        self.board.replace(names.ALARM, {(alarm,): 0.0 for alarm in names.ALARMS})
        if self._address is not None:
            server = HealthServer(parse_address(self._address), metrics=self.page, healthy=self.healthy, ready=self.ready)
            self._stack.callback(server.close)
            self.listening = server.address
            logger.info("serving /metrics, /healthz and /readyz", extra={"fields": {"address": ":".join(map(str, server.address))}})
            if self.board.render() is None:
                logger.warning("/metrics is empty: %s", MISSING)
        if self._notifier.watchdog_s is not None:
            threading.Thread(target=self._watchdog, args=(self._notifier.watchdog_s,), name="watchdog", daemon=True).start()

    def _watchdog(self, interval_s: float) -> None:
        while not self._over.wait(interval_s):
            if self.healthy().holds:
                self._notifier.alive()

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self.bell.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.bell.end()
        if number == signal.SIGINT and self.in_flight and self._on_interrupt is not None:
            self._on_interrupt(self.in_flight)
