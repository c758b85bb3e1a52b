"""A control plane in memory: it answers, refuses or hangs as told, and keeps what it was told. Events are counted, not timed."""

import threading
from queue import SimpleQueue

from weightsync.daemon.hints import Sight
from weightsync.errors import NotFound, Unavailable


class Plane:
    def __init__(self):
        self.down = threading.Event()
        self.calls: SimpleQueue[tuple] = SimpleQueue()
        self.sights: SimpleQueue[Sight | Exception] = SimpleQueue()
        self.known = set()
        self.interval_s = 0.05  # what the next registration is told
        self.hang = threading.Event()  # set: calls do not return before `close`
        self.closed = threading.Event()

    def _answer(self, *call):
        self.calls.put(call)
        if self.hang.is_set():
            self.closed.wait()
        if self.down.is_set():
            raise Unavailable("the control plane is away")

    def watch(self, run, channel, after):
        self._answer("watch", run, channel, after)
        while True:
            sight = self.sights.get()
            if isinstance(sight, Exception):
                raise sight
            yield sight

    def register(self, run, who):
        self._answer("register", run, who)
        self.known.add(who.name)
        return self.interval_s

    def report(self, run, who):
        self._answer("report", run, who)
        if who.name not in self.known:
            raise NotFound("register first")

    def notify(self, run, channel):
        self._answer("notify", run, channel)

    def close(self):
        self.closed.set()
        self.sights.put(Unavailable("closed"))

    def next(self, name):
        """The next call of that name; the test's timeout bounds the wait."""
        while True:
            call = self.calls.get()
            if call[0] == name:
                return call
