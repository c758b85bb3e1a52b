"""Who may generate, with which weights, and when the weights may be changed: the gate of an engine that lives in this process.

    gate = Gate(version=1)
    with gate.request(minimum=1) as request:            # Unavailable (ask again) where the version does not fit, or nothing is served
        while not done:
            with gate.step() as version:                # one step of generation: no weights change inside it
                ...                                     # its tokens are of `version`
            request.check()                             # Unavailable: the request was ended for new weights

    with gate.pause(Mode.KEEP, limit_s=30) as pause:    # no step is inside
        write(check=pause.check)                        # raises once the limit is over: go back, then
        gate.serve(2)

Everything works with `with` in any thread and with `async with` in any event loop. Nobody is held longer than a pause's limit: where the
one who paused does not come back in time, steps and requests are told to ask again, and the gate opens when he does.
"""

import asyncio
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

from weightsync.clock import SYSTEM, Clock
from weightsync.engine.api import Mode
from weightsync.errors import Conflict, Invalid, Unavailable

T = TypeVar("T")
_LATER = "ask again"


class Entry(Generic[T]):
    """What is entered with `with` or `async with`, once; gives a `T`."""

    def __init__(self, gate: "Gate", enter: Callable[[], T | None], leave: Callable[[], None], begin: Callable[[], None]) -> None:
        """`begin` comes first, `enter` is asked until it gives something, `leave` is called if `begin` was passed: all under the lock."""
        self._gate, self._enter, self._leave, self._begin = gate, enter, leave, begin

    def __enter__(self) -> T:
        changed = self._gate.changed
        with changed:
            self._begin()
            try:
                while (found := self._enter()) is None:
                    changed.wait(self._gate.patience_s())
            except BaseException:
                self._left()
                raise
            return found

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._gate.changed:
            self._left()

    async def __aenter__(self) -> T:
        with self._gate.changed:
            self._begin()
        try:
            while True:
                with self._gate.changed:
                    found = self._enter()
                    if found is not None:
                        return found
                    sleeper, patience_s = self._gate.sleeper(), self._gate.patience_s()
                try:
                    await asyncio.wait([sleeper], timeout=patience_s)
                finally:
                    sleeper.cancel()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)

    def _left(self) -> None:
        self._leave()
        self._gate.wake()


class Request:
    """A request in flight, and which versions it accepts."""

    def __init__(self, gate: "Gate", exact: int | None, minimum: int) -> None:
        self.exact, self.minimum = exact, minimum
        self._gate, self._aborted = gate, ""

    @property
    def ended(self) -> str:
        """Why it must end now; empty while it may go on."""
        return self._aborted or self._gate.refusal or self.misfit()

    def check(self) -> None:
        """Raises `Unavailable` where it must end."""
        if self.ended:
            raise Unavailable(self.ended, remedy=_LATER)

    def abort(self, why: str) -> None:
        """Ends it."""
        self._aborted = self._aborted or why

    def misfit(self) -> str:
        """Why the version that is served is none of those it accepts."""
        version = self._gate.version or 0
        if self.exact is not None and version != self.exact:
            return f"version {self.exact} was asked for, {version} is served"
        return f"version {self.minimum} or later was asked for, {version} is served" if version < self.minimum else ""


class Pause:
    """The time between `closed` and `over` in which nothing is generated, seconds of the gate's clock."""

    def __init__(self, clock: Clock, mode: Mode, limit_s: float) -> None:
        self.mode, self.limit_s = mode, limit_s
        self.draining = mode is Mode.WAIT  # steps of requests in flight go on
        self._clock = clock
        self._ends_s = clock.monotonic_s() + limit_s
        self._closed_s = self._over_s = 0.0

    @property
    def remaining_s(self) -> float:
        """Until the limit; not below 0."""
        return max(0.0, self._ends_s - self._clock.monotonic_s())

    @property
    def seconds(self) -> float:
        """How long nothing was, or has been, generated."""
        return (self._over_s or self._clock.monotonic_s()) - self._closed_s if self._closed_s else 0.0

    def check(self) -> None:
        """Raises `Unavailable` once the limit is over; to be called between the parts of the work."""
        if self.remaining_s <= 0:
            raise Unavailable(f"the pause did not do with its {self.limit_s:g} s", remedy="allow more time, or change less at once")

    def closed(self) -> None:
        """From now on nothing is generated."""
        self.draining = False
        self._closed_s = self._clock.monotonic_s()

    def over(self) -> None:
        """It is generated again."""
        self._over_s = self._clock.monotonic_s()


class Gate:
    """Serves `version` (None: nothing, until `serve`)."""

    def __init__(self, version: int | None = None, *, clock: Clock = SYSTEM) -> None:
        self.changed = threading.Condition()  # for `Entry`
        self._clock = clock
        self._version, self._why_none, self._withdrawn = version, "nothing was loaded yet", ""
        self._steps, self._requests = 0, set[Request]()
        self._pause: Pause | None = None
        self._sleepers = set[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]]()

    @property
    def version(self) -> int | None:
        """What is generated with."""
        return self._version

    @property
    def refusal(self) -> str:
        """Why nothing is served; empty while something is, pauses included."""
        return self._withdrawn or ("" if self._version is not None else self._why_none)

    @property
    def in_flight(self) -> int:
        """Requests inside."""
        return len(self._requests)

    def request(self, *, exact: int | None = None, minimum: int = 0) -> Entry[Request]:
        """One request, which takes tokens of version `exact` only, or of `minimum` and later. A pause is waited out.

        Raises `Unavailable` where no such version is served; `Request.check` does when that comes to be so later.
        """
        request = Request(self, exact, minimum)

        def enter() -> Request | None:
            if self._must_wait():
                return None
            self._refuse(request.misfit())
            self._requests.add(request)
            return request

        return Entry(self, enter, lambda: self._requests.discard(request), lambda: None)

    def step(self) -> Entry[int]:
        """One step, for one request or a batch of them; gives the version. A pause is waited out. Raises `Unavailable`."""
        inside: list[int] = []

        def enter() -> int | None:
            pause = self._pause
            if not (pause and pause.draining) and self._must_wait():
                return None
            self._refuse()
            self._steps += 1
            inside.append(self._version or 0)
            return inside[0]

        def leave() -> None:
            self._steps -= len(inside)

        return Entry(self, enter, leave, lambda: None)

    def pause(self, mode: Mode = Mode.KEEP, limit_s: float = 30.0) -> Entry[Pause]:
        """Nothing is generated inside; before that, the current step ends, and with `WAIT` all requests in flight do.

        Raises `Unavailable` where that takes longer than `limit_s`, and all goes on; `Conflict` where it is paused already.
        """
        if not limit_s > 0:
            raise Invalid(f"a pause of at most {limit_s} s", remedy="give a positive limit")
        mine: list[Pause] = []

        def begin() -> None:
            if self._pause is not None:
                raise Conflict("the engine is paused already", remedy="wait for that pause to end")
            self._pause = Pause(self._clock, mode, limit_s)
            mine.append(self._pause)
            for request in self._requests if mode is Mode.ABORT else ():
                request.abort("the request was ended for new weights")

        def enter() -> Pause | None:
            (pause,) = mine
            busy = self._steps > 0 or (bool(self._requests) and mode is Mode.WAIT)
            if busy and pause.remaining_s <= 0:
                raise Unavailable("what is in flight did not end within the pause's limit", remedy="allow more time, or keep requests")
            if busy:
                return None
            pause.closed()
            return pause

        def leave() -> None:
            mine[0].over()
            self._pause = None

        return Entry(self, enter, leave, begin)

    def serve(self, version: int | None, why: str = "the weights are in doubt") -> None:
        """From now on this version is generated with; None: nothing, and `why`."""
        with self.changed:
            self._version, self._why_none = version, why
            self.wake()

    def withdraw(self, reason: str) -> None:
        """Nothing is served until `admit`; who asks is told `reason`. Steps that run end as they would."""
        with self.changed:
            self._withdrawn = f"withdrawn: {reason or 'no reason was given'}"
            self.wake()

    def admit(self) -> None:
        """Takes `withdraw` back."""
        with self.changed:
            self._withdrawn = ""
            self.wake()

    def wake(self) -> None:
        """Lets all that wait look again. Under the lock."""
        self.changed.notify_all()
        for loop, sleeper in tuple(self._sleepers):
            if not loop.is_closed():
                loop.call_soon_threadsafe(_wake, sleeper)
        self._sleepers.clear()

    def sleeper(self) -> "asyncio.Future[None]":
        """Done at the next change. Under the lock."""
        loop = asyncio.get_running_loop()
        sleeper = loop.create_future()
        self._sleepers.add((loop, sleeper))
        sleeper.add_done_callback(lambda _: self._sleepers.discard((loop, sleeper)))
        return sleeper

    def patience_s(self) -> float | None:
        """How long to wait for a change before looking again; None: for ever. Under the lock."""
        return max(self._pause.remaining_s, 0.001) if self._pause else None

    def _must_wait(self) -> bool:
        if self._pause is None or self.refusal:
            return False
        if self._pause.remaining_s <= 0:
            raise Unavailable("a pause is longer than its limit", remedy="ask again, or another replica")
        return True

    def _refuse(self, also: str = "") -> None:
        why = self.refusal or also
        if why:
            raise Unavailable(why, remedy=_LATER)


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)
