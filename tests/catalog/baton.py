"""A deterministic scheduler for blocking code: actors are threads of which exactly one holds the baton.

An actor gives the baton back before every operation on the store and at every sleep; a seeded generator decides who gets it next, and who
dies there. The same seed gives the same interleaving.
"""

import random  # noqa: TID251  seeded, and only here
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from weightsync.errors import WeightsyncError
from weightsync.store.api import Buffer, Object, ObjectStore, Stat
from weightsync.store.memory_faults import Crashed
from weightsync.testing.clock import ManualClock

Random = random.Random


class Killed(BaseException):
    """The actor dies here; no handler may catch it."""


@dataclass
class Actor:
    """A thread that runs only while it holds the baton."""

    name: str
    act: Callable[[], None]
    go: threading.Lock = field(default_factory=threading.Lock)
    speed: int = 1
    asleep_until: int = 0  # step
    killed: bool = False
    died: bool = False  # killed, or crashed in an injected fault
    done: bool = False
    error: WeightsyncError | None = None  # what ended it
    defect: str = ""  # a traceback of anything else


class Scheduler:
    """Runs actors one operation at a time, in an order drawn from `rng`."""

    def __init__(self, rng: Random, *, kill_rate: float = 0.0, stop_rate: float = 0.0) -> None:
        """Rates are per step: of dying, and of being stopped (as by SIGSTOP) for up to 200 steps."""
        self.actors: list[Actor] = []
        self.steps = 0
        self._rng = rng
        self._kill_rate = kill_rate
        self._stop_rate = stop_rate
        self._back = threading.Lock()
        self._back.acquire()
        self._current: Actor | None = None

    def spawn(self, name: str, act: Callable[[], None]) -> None:
        self.actors.append(Actor(name, act, speed=self._rng.choice((1, 4, 16))))

    @property
    def current(self) -> str:
        return self._current.name if self._current else "-"

    def step(self) -> None:
        """Called by an actor: lets the others go first."""
        actor = self._current
        if actor is None:
            return  # before or after the run
        if not actor.killed:
            self._back.release()
            actor.go.acquire()
        if actor.killed:
            raise Killed

    def run(self, limit: int) -> None:
        """Until all are done, or for `limit` steps; then who is left dies."""
        live = []
        for actor in self.actors:
            actor.go.acquire()
            threading.Thread(target=self._main, args=(actor,), daemon=True).start()
            live.append(actor)
        while live:
            self.steps += 1
            actor = self._choose(live)
            actor.killed |= self.steps > limit or (len(live) > 1 and self._rng.random() < self._kill_rate)
            self._current = actor
            actor.go.release()
            self._back.acquire()
            if actor.done:
                live.remove(actor)
        self._current = None

    def _choose(self, live: list[Actor]) -> Actor:
        awake = [actor for actor in live if actor.asleep_until <= self.steps] or live
        actor = self._rng.choices(awake, [actor.speed for actor in awake])[0]
        if self._rng.random() < self._stop_rate:
            actor.asleep_until = self.steps + self._rng.randrange(10, 200)
        return actor

    def _main(self, actor: Actor) -> None:
        actor.go.acquire()
        try:
            if actor.killed:
                raise Killed
            actor.act()
        except (Killed, Crashed):
            actor.died = True
        except WeightsyncError as error:
            actor.error = error
        except BaseException:  # noqa: BLE001  any other end is a defect, and is reported as one
            actor.defect = traceback.format_exc()
        finally:
            actor.done = True
            self._back.release()


class BatonClock(ManualClock):
    """A clock on which sleeping lets the others go first."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def sleep_s(self, seconds: float) -> None:
        super().sleep_s(seconds)
        self._scheduler.step()


class BatonStore:
    """`ObjectStore` that lets the others go first before every operation, and keeps a trace."""

    def __init__(self, inner: ObjectStore, scheduler: Scheduler, trace: list[str]) -> None:
        self._inner = inner
        self._scheduler = scheduler
        self._trace = trace

    @property
    def url(self) -> str:
        return self._inner.url

    def _turn(self, name: str, key: str) -> None:
        self._scheduler.step()
        self._trace.append(f"{self._scheduler.current} {name} {key}")

    def get(self, key: str, *, max_bytes: int) -> Object:
        self._turn("get", key)
        return self._inner.get(key, max_bytes=max_bytes)

    def get_if_changed(self, key: str, etag: str, *, max_bytes: int) -> Object | None:
        self._turn("get_if_changed", key)
        return self._inner.get_if_changed(key, etag, max_bytes=max_bytes)

    def read_into(self, key: str, into: memoryview, *, start: int = 0) -> None:
        self._turn("read_into", key)
        self._inner.read_into(key, into, start=start)

    def stat(self, key: str) -> Stat:
        self._turn("stat", key)
        return self._inner.stat(key)

    def create(self, key: str, data: Buffer) -> str:
        self._turn("create", key)
        return self._inner.create(key, data)

    def swap(self, key: str, data: Buffer, etag: str) -> str:
        self._turn("swap", key)
        return self._inner.swap(key, data, etag)

    def put(self, key: str, data: Buffer) -> str:
        self._turn("put", key)
        return self._inner.put(key, data)

    def list(self, prefix: str) -> Iterator[Stat]:
        self._turn("list", prefix)
        return self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self._turn("delete", key)
        self._inner.delete(key)

    def close(self) -> None:
        self._inner.close()
