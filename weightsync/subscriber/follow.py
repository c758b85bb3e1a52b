"""Following a channel: poll, check, update the replica, tell the outputs. Whatever is wrong with the store, what is held is served on.

    subscriber = Subscriber(catalog, replica, shards, accepted, channel="latest", outputs=[DirectoryOutput(...)])
    subscriber.step()               # one poll; raises what is wrong
    subscriber.run(stop)            # for ever; logs what is wrong and tries again
    subscriber.demand, subscriber.served    # for other threads: what should be served, and what is

The order of things: a head counts only when it is verified and not older than what was accepted before; that is written down first. Then
the replica becomes the version (all or nothing), then each output. After a kill anywhere the next step goes on from there.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from weightsync.catalog import Catalog, Head, VersionRecord
from weightsync.clock import jitter
from weightsync.errors import Corrupt, Dirty, NotFound, Unavailable, WeightsyncError
from weightsync.failpoints import failpoint
from weightsync.format.keys import LATEST
from weightsync.format.layout import Layout
from weightsync.format.refs import VersionRef
from weightsync.replica.adopt import Readable, adopt
from weightsync.replica.fetch import ShardSource
from weightsync.replica.replica import Replica
from weightsync.replica.update import Progress, Update, update
from weightsync.store.oserrors import named_errors
from weightsync.subscriber.state import AcceptedFile

logger = logging.getLogger(__name__)

# After failures looks get rarer only up to here: a thousand hosts that look every few seconds are what the store bears anyway, and when it
# is back they must not sleep on.
MAX_WAIT_S = 3.0


class Output(Protocol):
    """Where verified versions go after the replica."""

    @property
    def version(self) -> VersionRef | None:
        """The version that it holds."""
        ...

    def deliver(self, catalog: Catalog, replica: Replica, record: VersionRecord) -> Mapping[str, float] | None:
        """Makes the replica's version the one that it holds, at once or not at all; seconds by phase, where it has any."""
        ...

    def close(self) -> None:
        """Lets go."""
        ...


@dataclass(frozen=True)
class Step:
    """What a poll led to. `version` is what is served now. `stale`: the head has expired, so nothing newer is accepted.

    `update` is None where the replica had the version; `delivered` counts the outputs that changed, `phases` are their seconds by phase,
    of the slowest one.
    """

    version: VersionRef | None
    sequence: int
    stale: bool
    update: Update | None = None
    delivered: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether anything happened."""
        return self.update is not None or self.delivered > 0


@dataclass(frozen=True)
class Demand:
    """What is to be served: the `version` of a verified move, None for nothing yet. `moved_ms` by the mover's clock; fixed: sequence 0."""

    sequence: int
    version: VersionRef | None
    moved_ms: int


class Stop(Protocol):
    """When to end, and how to wait for it; `threading.Event` is one."""

    def is_set(self) -> bool:
        """Whether to end."""
        ...

    def wait(self, timeout: float) -> bool:
        """Waits for `timeout` seconds at most; comes back sooner when it is time to end, or to look again."""
        ...


class Subscriber:
    """Not for several threads at once. Closing it closes the replica and the outputs."""

    def __init__(
        self,
        catalog: Catalog,
        replica: Replica,
        shards: ShardSource,
        accepted: AcceptedFile,
        *,
        channel: str = LATEST,
        fixed: int | None = None,
        outputs: Sequence[Output] = (),
        progress: Progress | None = None,
    ) -> None:
        """`fixed`: the number of a committed version to serve; the channel is not followed then."""
        self._catalog, self._replica, self._shards, self._accepted = catalog, replica, shards, accepted
        self._channel, self._fixed, self._outputs = channel, fixed, tuple(outputs)
        self.progress = progress  # of downloads
        self._head: Head | None = None
        self._record: VersionRecord | None = None
        self.error: WeightsyncError | None = None  # of the last step; None when it went well
        self.demand: Demand | None = None  # None until the channel was looked at
        self.served: VersionRef | None = self._held_everywhere()

    @property
    def version(self) -> VersionRef | None:
        """What is held, verified."""
        return self._replica.version

    def step(self) -> Step:
        """Looks once and does what follows. Raises what is wrong; what was held is still held then.

        `NotFound` when there is no such run; a run or channel without any version yet gives a step without one.
        """
        try:
            with named_errors(f"following channel {self._channel!r}"):
                step = self._step()
        except WeightsyncError as error:
            self.error = error
            if isinstance(error, Dirty):
                self.served = None  # an engine serves nothing
            raise
        self.error = None
        return step

    def adopt(self, source: Readable) -> VersionRef | None:
        """Takes a checkpoint on this host instead of a download, if it is a committed version. Raises as `replica.adopt`."""
        found = adopt(self._replica, self._catalog, source, wanted=self._wanted())
        return found.ref if found else None

    def expected_layout(self) -> Layout | None:
        """How the version that is to be served is cut; None while there is none."""
        wanted = self._wanted()
        return self._catalog.layout(wanted.manifest.layout) if wanted else None

    def _wanted(self) -> VersionRecord | None:
        if self._fixed is not None:
            return self._fixed_record(self._fixed)
        head = self._look()
        return self._describe(head.version) if head and head.version else None

    def once(self) -> Step:
        """As `step`, for who will not come back: raises `NotFound` when there is no version, `Unavailable` when the head has expired."""
        step = self.step()
        if step.stale:
            raise Unavailable(f"the head of channel {self._channel!r} has expired", remedy="check that the publisher and its renewals run")
        if step.version is None:
            there = ", ".join(sorted(self._catalog.channels())) or "none yet"
            raise NotFound(
                f"channel {self._channel!r} has no version yet",
                remedy=f"publish one, or promote one to this channel; channels of this run: {there}",
            )
        return step

    def run(
        self,
        stop: Stop,
        *,
        interval_s: float = 2.0,
        on_step: Callable[[Step], None] | None = None,
        on_error: Callable[[WeightsyncError], None] | None = None,
    ) -> None:
        """Steps until `stop` is set, at random times around `interval_s`; after failures somewhat more slowly."""
        failures = 0
        while not stop.is_set():
            try:
                step = self.step()
                failures = 0
                if on_step is not None:
                    on_step(step)
            except WeightsyncError as error:
                failures += 1
                served = self.served  # not what the replica holds: the outputs may not have it
                logger.warning("%s: %s", f"version {served.version} is served on" if served else "nothing is served yet", error)
                if on_error is not None:
                    on_error(error)
            wait_s = min(max(interval_s, MAX_WAIT_S), interval_s * 2.0 ** min(failures, 10))
            stop.wait(wait_s / 2 + jitter(wait_s))

    def close(self) -> None:
        """Closes outputs, replica and state."""
        for output in self._outputs:
            output.close()
        self._replica.close()
        self._accepted.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _held_everywhere(self) -> VersionRef | None:
        try:
            held = {self._replica.version, *(output.version for output in self._outputs)}
        except WeightsyncError as error:  # an engine that does not run yet
            logger.info("what is served is not known yet: %s", error)
            return None
        return held.pop() if len(held) == 1 else None

    def _step(self) -> Step:
        if self._fixed is not None:
            return self._serve(self._fixed_record(self._fixed), 0)
        head = self._look()
        if head is None:
            self.demand = Demand(0, None, 0)
            return Step(self.version, 0, stale=False)
        failpoint("subscribe.head_seen")
        self._accepted.accept(head)
        self._head = head
        sequence, target = head.move.sequence, head.version
        self.demand = Demand(sequence, target, head.move.created_ms)
        if head.expires_ms is not None and head.expires_ms <= self._catalog.clock.now_s() * 1000:
            logger.warning("the head of channel %r has expired: nothing newer is accepted", self._channel)
            return Step(self.version, sequence, stale=True)
        if target is None:
            return Step(self.version, sequence, stale=False)
        return self._serve(self._describe(target), sequence)

    def _serve(self, record: VersionRecord, sequence: int) -> Step:
        done = self._bring(record)
        delivered, phases = self._deliver(record)
        self.served = record.ref
        self._replica.remember()
        return Step(self.version, sequence, stale=False, update=done, delivered=delivered, phases=phases)

    def _fixed_record(self, version: int) -> VersionRecord:
        if self._record is None:
            self._record = self._catalog.manifest_of(version)
            self._catalog.check_kept(version)
            self.demand = Demand(0, self._record.ref, self._record.manifest.created_ms)
        return self._record

    def _look(self) -> Head | None:
        if self._head is not None:
            return self._catalog.head_if_changed(self._channel, self._head.etag) or self._head
        head = self._catalog.head(self._channel)
        if head is None:
            if self._accepted.value is not None:
                raise Corrupt(
                    f"channel {self._channel!r} was at sequence {self._accepted.value.sequence} and is gone",
                    remedy="the store was emptied or rolled back: restore it; to start anew, delete this subscriber's state",
                )
            self._catalog.run()  # the run does not exist, or has no such channel yet
        return head

    def _describe(self, target: VersionRef) -> VersionRecord:
        if self._record is None or self._record.ref != target:
            self._record = self._catalog.manifest_of(target.version, target.manifest)
        return self._record

    def _bring(self, record: VersionRecord) -> Update | None:
        if self._replica.version == record.ref and self._replica.root == record.manifest.root:
            return None
        return update(self._replica, self._catalog, record, self._shards, progress=self.progress)

    def _deliver(self, record: VersionRecord) -> tuple[int, dict[str, float]]:
        delivered, phases = 0, dict[str, float]()
        for output in self._outputs:
            try:
                version = output.version
            except WeightsyncError:
                self.served = None  # an engine that does not answer
                raise
            if version != record.ref:
                for phase, took_s in (output.deliver(self._catalog, self._replica, record) or {}).items():
                    phases[phase] = max(took_s, phases.get(phase, 0.0))
                delivered += 1
        return delivered, phases
