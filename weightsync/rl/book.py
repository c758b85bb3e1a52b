"""The hub's book: which task is where, so that each counts exactly once and none is too old. Pure: the time comes in as an argument.

    number   ->  leased to a worker  ->  queued  ->  taken by the trainer  ->  consumed, once the trainer's checkpoint is durable
                    | lost, given up      | too old     | the trainer began again without it
                    +----------- open again, under the same number ---------+

Nothing here needs to survive: a hub that starts anew learns from the trainer what is consumed, and makes the rest again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from weightsync.errors import Unavailable
from weightsync.rl.checkpoint import Numbers
from weightsync.rl.episode import derive
from weightsync.rl.lag import Ages, Bound, RegionLag, room
from weightsync.rl.records import Group, Task


@dataclass(frozen=True)
class Work:
    """What a run is made of. `per_step`: groups of one step; `samples`: episodes of a group; `lease_s`: of a silent worker."""

    environment: str = "sort"
    samples: int = 16
    per_step: int = 16
    bound: Bound = field(default_factory=Bound)
    lease_s: float = 30.0
    seed: int = 0


@dataclass
class Lease:
    """A task that is worked on; `version`: what its first token can come from, at the earliest."""

    worker: str
    version: int
    until_s: float


@dataclass
class Worker:
    """What is known of a worker."""

    region: str
    version: int
    seen_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Counts:
    """What went another way than straight through."""

    stale: int = 0
    duplicates: int = 0
    expired: int = 0


class Book:
    """For one thread at a time."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.consumed = Numbers()
        self.step = 0
        self.leases: dict[int, Lease] = {}
        self.queue: dict[int, Group] = {}
        self.taken: dict[int, Group] = {}
        self.workers: dict[str, Worker] = {}
        self.regions: dict[str, RegionLag] = {}
        self.counts = Counts()
        self.metrics: Mapping[str, float] = {}
        self.ages = Ages()
        self._open: set[int] = set()  # were leased once, and are not any more
        self._next = 0
        self._begun = False

    def begin(self, consumed: Numbers, step: int, version: int, now_s: float) -> None:
        """The trainer begins. What it took and does not name waits for it again."""
        self._begun = True
        for number, group in self.taken.items():
            if number not in consumed:
                self.queue[number] = group
        self.taken.clear()
        self._count(consumed, step, version, now_s)
        last = max((stop for _, stop in consumed.ranges), default=0)
        self._next = max(self._next, last)
        self._open |= {number for number in range(last) if self._is_free(number)}

    def confirm(self, consumed: Numbers, step: int, version: int, metrics: Mapping[str, float], now_s: float) -> None:
        """The trainer's checkpoint is durable, or its next version is there."""
        self._need_trainer()
        self._count(consumed, step, version, now_s)
        if metrics:
            self.metrics = dict(metrics)

    def lease(
        self, worker: str, where: Worker, working_on: Iterable[int], now_s: float, *, wants: bool
    ) -> tuple[Task | None, list[int], str]:
        """A task or none, what the worker shall give up, and why there is no task. Raises `Unavailable` before the trainer has begun."""
        self._need_trainer()
        self.workers[worker] = where
        working_on = set(working_on)
        give_up = []
        for number in working_on:
            lease = self.leases.get(number)
            if lease is None or lease.worker != worker or not self.ages.within(self.work.bound, lease.version, now_s):
                give_up.append(number)
            else:
                lease.until_s = now_s + self.work.lease_s
        # A worker that does not name a task has lost it, or has given it up.
        self._release([n for n, lease in self.leases.items() if lease.worker == worker and (n not in working_on or n in give_up)])
        self._expire(now_s)
        if not wants:
            return None, give_up, ""
        why = self._refusal(where.version, now_s)
        if why:
            return None, give_up, why
        number = min(self._open, default=self._next)
        self._open.discard(number)
        self._next = max(self._next, number + 1)
        self.leases[number] = Lease(worker, where.version, now_s + self.work.lease_s)
        return self._task(number), give_up, ""

    def submit(self, group: Group, now_s: float) -> bool:
        """Whether it will count. The first one of a number does."""
        self._need_trainer()
        number = group.task.number
        if number in self.consumed or number in self.queue or number in self.taken or number >= self._next:
            self.counts.duplicates += 1
            return False
        if group.task != self._task(number) or len(group.episodes) != group.task.samples:
            return False
        self.leases.pop(number, None)
        self._open.discard(number)
        if group.oldest_version and not self.ages.within(self.work.bound, group.oldest_version, now_s):
            self._stale(number)
            return False
        self.queue[number] = group
        return True

    def take(self, version: int, now_s: float) -> list[Group]:
        """The groups of the next step, oldest policy first; none while there are too few, or one is under way that would come too late."""
        self._need_trainer()
        self.ages.seen(version, now_s)
        self._expire(now_s)
        for number, group in list(self.queue.items()):
            if group.oldest_version and not self.ages.within(self.work.bound, group.oldest_version, now_s):
                del self.queue[number]
                self._stale(number)
        if self.taken:  # asked again after a lost reply
            return sorted(self.taken.values(), key=_age)
        if len(self.queue) < self.work.per_step or self._someone_would_be_late():
            return []
        for group in sorted(self.queue.values(), key=_age)[: self.work.per_step]:
            self.taken[group.task.number] = self.queue.pop(group.task.number)
            if group.oldest_version:
                lag = self.regions.setdefault(group.region, RegionLag())
                lag.add(max(0, version - group.oldest_version), self.ages.lag_s(group.oldest_version, now_s))
        return sorted(self.taken.values(), key=_age)

    def _count(self, consumed: Numbers, step: int, version: int, now_s: float) -> None:
        self.consumed, self.step = consumed, step
        self.ages.seen(version, now_s)
        for held in (self.taken, self.queue, self.leases):
            for number in [number for number in held if number in consumed]:
                del held[number]
        self._open = {number for number in self._open if number not in consumed}

    def _refusal(self, version: int, now_s: float) -> str:
        bound, newest = self.work.bound, self.ages.newest
        if version < 1:
            return "no weights yet"
        if not self.ages.within(bound, version, now_s):
            return f"version {version} is too old, {newest} is there"
        under_way = len(self.leases) + len(self.queue) + len(self.taken)
        if not room(bound, self.work.per_step, behind=newest - version, under_way=under_way):
            return "enough is under way"
        return ""

    def _someone_would_be_late(self) -> bool:
        """Whether a further version would make a task too old that somebody is working on."""
        return any(self.ages.newest + 1 - lease.version > self.work.bound.versions for lease in self.leases.values())

    def _stale(self, number: int) -> None:
        self.counts.stale += 1
        self._open.add(number)

    def _expire(self, now_s: float) -> None:
        late = [number for number, lease in self.leases.items() if lease.until_s <= now_s]
        self.counts.expired += len(late)
        self._release(late)

    def _release(self, numbers: list[int]) -> None:
        for number in numbers:
            del self.leases[number]
            self._open.add(number)

    def _is_free(self, number: int) -> bool:
        return not (number in self.consumed or number in self.leases or number in self.queue or number in self.taken)

    def _task(self, number: int) -> Task:
        return Task(number, self.work.environment, derive(self.work.seed, number), self.work.samples)

    def _need_trainer(self) -> None:
        if not self._begun:
            raise Unavailable("the trainer has not begun yet", remedy="ask again")


def _age(group: Group) -> tuple[int, int]:
    return group.oldest_version, group.task.number
