"""What a daemon tells the control plane, and is told. Hints: none is waited for, none can fail what the daemon is there for."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from weightsync.clock import jitter
from weightsync.errors import Compacted, NotFound, WeightsyncError
from weightsync.telemetry.facts import SubscriberFact

logger = logging.getLogger(__name__)

RETRY_S = 1.0  # after the first failure; twice as long after each further one
MAX_RETRY_S = 15.0
CALM_S = 0.2  # between two reports
JOIN_S = 3.0  # a thread that hangs in a call does not keep the process


class Sight(NamedTuple):
    """What a watch sees: the channel's `sequence`, None for nothing new; and whether it is connected."""

    sequence: int | None
    connected: bool


class ControlPlane(Protocol):
    """The part of a control plane's client that daemons need. Every call may raise any `WeightsyncError`."""

    def watch(self, run: str, channel: str, after: int | None) -> Iterator[Sight]:
        """What is seen of a channel, at least every few seconds, also without news; reconnects by itself."""
        ...

    def register(self, run: str, who: SubscriberFact) -> float:
        """Makes a subscriber known; returns how often to report, in seconds."""
        ...

    def report(self, run: str, who: SubscriberFact) -> None:
        """Says how it is. `NotFound`: register (again)."""
        ...

    def notify(self, run: str, channel: str) -> None:
        """Something is new in the store."""
        ...

    def close(self) -> None:
        """Ends every call that is going on."""
        ...


class _Worker:
    """A thread that repeats `_work` until it is closed; after failures ever more slowly, at random times."""

    name = "hint"

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._failures = 0

    def start(self) -> Self:
        """Begins."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Says that it is over, and does not wait."""
        self._over.set()

    def close(self) -> None:
        """Ends, and waits a little for it."""
        self.stop()
        self._thread.join(JOIN_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._work()
            except WeightsyncError as error:
                self._fail(error)

    def _work(self) -> None:
        raise NotImplementedError

    def _fail(self, error: WeightsyncError) -> None:
        if self._over.is_set():
            return
        # Once at warning level: a control plane that stays away is no news.
        logger.log(logging.DEBUG if self._failures else logging.WARNING, "%s: going on without the control plane: %s", self.name, error)
        self._failures += 1
        wait_s = min(MAX_RETRY_S, RETRY_S * 2.0 ** min(self._failures, 10))
        self._over.wait(jitter(wait_s))

    def _succeeded(self) -> None:
        if self._failures:
            logger.info("%s: the control plane is back", self.name)
        self._failures = 0


class Watch(_Worker):
    """Calls `on_move(sequence)` when the channel may have been moved. `on_state(True)`: connected, `on_state(False)`: not any more."""

    name = "watch"

    def __init__(
        self,
        plane: ControlPlane,
        run: str,
        channel: str,
        on_move: Callable[[int], None],
        on_state: Callable[[bool], None],
        *,
        spread_s: float = 0.0,
    ) -> None:
        """`spread_s`: the first connect comes at a random time within it."""
        super().__init__()
        self._plane, self._channel_of_run, self._on_move, self._on_state = plane, (run, channel), on_move, on_state
        self._spread_s = spread_s
        self._sequence: int | None = None

    def _work(self) -> None:
        self._over.wait(jitter(self._spread_s))
        run, channel = self._channel_of_run
        try:
            for sight in self._plane.watch(run, channel, self._sequence):
                if self._over.is_set():
                    return
                self._see(sight)
        except Compacted:
            self._sequence = None  # the newest is all that we need to know
            raise
        finally:
            self._on_state(False)

    def _see(self, sight: Sight) -> None:
        self._on_state(sight.connected)
        if sight.connected:
            self._succeeded()
        if sight.sequence is not None and (self._sequence is None or sight.sequence > self._sequence):
            self._sequence = sight.sequence
            self._on_move(sight.sequence)


@contextmanager
def working(plane: ControlPlane, *workers: _Worker) -> Iterator[None]:
    """They work while the block runs. In the end the control plane is closed first, so that no call is waited for."""
    try:
        for worker in workers:
            worker.start()
        yield
    finally:
        for worker in workers:
            worker.stop()
        plane.close()
        for worker in workers:
            worker.close()


@dataclass
class _Said:
    fact: SubscriberFact
    number: int


class Reporter(_Worker):
    """Registers, and reports the newest state: soon after it changes, and every now and then anyway. `on_sent(ok)` counts."""

    name = "report"

    def __init__(
        self, plane: ControlPlane, run: str, first: SubscriberFact, on_sent: Callable[[bool], None], *, spread_s: float = 0.0
    ) -> None:
        super().__init__()
        self._plane, self._run_name, self._on_sent, self._spread_s = plane, run, on_sent, spread_s
        self._changed = threading.Condition()
        self._said = _Said(first, 1)
        self._sent = 0
        self._interval_s: float | None = None

    def say(self, fact: SubscriberFact) -> None:
        """What there is to report now. Never blocks: only the newest counts."""
        with self._changed:
            self._said = _Said(fact, self._said.number + 1)
            self._changed.notify()

    def stop(self) -> None:
        """Says that it is over."""
        super().stop()
        with self._changed:
            self._changed.notify()

    def _work(self) -> None:
        if self._interval_s is None:
            self._over.wait(jitter(self._spread_s))
            if self._over.is_set():
                return
            self._interval_s = self._counted(lambda: self._plane.register(self._run_name, self._said.fact))
        said = self._next(self._interval_s)
        if said is None:
            return
        try:
            self._counted(lambda: self._plane.report(self._run_name, said.fact))
        except NotFound:  # the server was restarted
            self._interval_s = None
            self._sent = 0  # a new registration says nothing of what is served: report at once, not at the next sign of life
            self._over.wait(CALM_S)
            return
        self._sent = said.number
        self._succeeded()
        self._over.wait(CALM_S)

    def _next(self, interval_s: float) -> _Said | None:
        """Waits until something changed, or the time for a sign of life has come (at random times around the interval)."""
        with self._changed:
            if self._said.number == self._sent:
                self._changed.wait_for(lambda: self._said.number != self._sent or self._over.is_set(), interval_s / 2 + jitter(interval_s))
            return None if self._over.is_set() else self._said

    def _counted(self, call: Callable[[], float | None]) -> float:
        try:
            found = call()
        except WeightsyncError:
            self._on_sent(False)
            raise
        self._on_sent(True)
        return found or 0.0


class Notices(_Worker):
    """Tells the control plane that a channel was moved. A notice that cannot be sent is dropped when the next one comes, and in the end."""

    name = "notice"

    def __init__(self, plane: ControlPlane, run: str, channel: str, on_sent: Callable[[bool], None]) -> None:
        super().__init__()
        self._plane, self._channel_of_run, self._on_sent = plane, (run, channel), on_sent
        self._due = threading.Event()

    def tell(self) -> None:
        """There is a new version. Never blocks."""
        self._due.set()

    def stop(self) -> None:
        """Says that it is over."""
        super().stop()
        self._due.set()

    def _work(self) -> None:
        self._due.wait()
        self._due.clear()
        if self._over.is_set():
            return
        run, channel = self._channel_of_run
        try:
            self._plane.notify(run, channel)
        except WeightsyncError:
            self._on_sent(False)
            raise
        self._on_sent(True)
        self._succeeded()
