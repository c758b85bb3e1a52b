"""A control plane over a memory store, in this process, and what tests do with it."""

from contextlib import ExitStack
from typing import Self

from weightsync.catalog import Catalog
from weightsync.control.access import CallerRole, Gate
from weightsync.control.client import ControlClient
from weightsync.control.server import ControlServer
from weightsync.control.settings import Limits, Pace, ServerSettings
from weightsync.store.memory import MemoryStore
from weightsync.store.retry import RetryPolicy
from weightsync.testing.control_server import serving
from weightsync.testing.tiny_run import TinyRun
from weightsync.trust import UNSIGNED

RUN = "run"
PATIENCE = RetryPolicy(attempts=3, deadline_s=1.0, base_s=0.01, cap_s=0.05)
NEVER_S = 3600.0
SLOW = Pace(poll_s=NEVER_S, bookmark_s=NEVER_S, drain_s=1.0)  # nothing happens unless the test asks for it


class Plane:
    """One store; servers and clients that are closed at the end."""

    def __init__(self, store: MemoryStore | None = None, policy=UNSIGNED) -> None:
        self.store = store or MemoryStore("test")
        self.policy = policy
        self._stack = ExitStack()

    def catalog(self, run: str = RUN, policy=None) -> Catalog:
        return Catalog(self.store, run, policy=policy or self.policy, capability="full", patience=PATIENCE)

    def run(self, versions: int = 0, name: str = RUN, policy=None) -> TinyRun:
        run = TinyRun(self.catalog(name, policy))
        run.publish(versions)
        return run

    def serve(self, *, gate: Gate | None = None, pace: Pace = SLOW, limits: Limits | None = None, policy=None, **more) -> str:
        """The address of a new server."""
        settings = ServerSettings(limits=limits or Limits(), pace=pace, reflection=more.pop("reflection", False))
        gate = gate or Gate(anonymous=CallerRole.OPERATOR)

        def make() -> ControlServer:
            return ControlServer(lambda name: self.catalog(name, policy), gate, settings=settings, **more)

        return self._stack.enter_context(serving(make))

    def client(self, address: str | None = None, **more) -> ControlClient:
        return self._stack.enter_context(ControlClient(address or self.serve(), **more))

    def watch(self, client: ControlClient, channel: str = "latest", after: int | None = 0):
        return self._stack.enter_context(client.watch(RUN, channel, after_sequence=after))

    def keep(self, context):
        """Enters `context` until the end."""
        return self._stack.enter_context(context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error) -> None:
        self._stack.__exit__(*error)


def moves(watch, count: int, timeout_s: float = 20.0):
    """The next `count` moves, bookmarks left out."""
    found = []
    while len(found) < count:
        event = watch.next(timeout_s)
        assert event is not None, f"only {len(found)} of {count} came"
        if hasattr(event, "move"):
            found.append(event)
    return found
