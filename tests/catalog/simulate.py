"""Random simulation of the commit protocol: the real catalog over a memory store that loses replies and kills.

    python -m tests.catalog.simulate --runs 5000 --seed 1 [--profile storm] [--without "a refusal is read back"]

Publishers, operators, readers and a collector interleave at every operation on the store. See `validators` for what must hold.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blake3 import blake3

from tests.catalog import validators
from tests.catalog.actors import LOST, Collector, Operator, Publisher, Reader, Witness, is_expected
from tests.catalog.baton import BatonClock, BatonStore, Random, Scheduler
from tests.catalog.sabotage import RULES
from weightsync.catalog import Catalog, Head
from weightsync.catalog.move_writer import MoveWriter
from weightsync.errors import NotFound, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.format.envelope import Envelope
from weightsync.format.moves import Move
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Faults
from weightsync.store.retry import RetryPolicy

RUN = "sim"
STEPS = 3000
PATIENCE = RetryPolicy(attempts=6, deadline_s=60.0)


@dataclass(frozen=True)
class Profile:
    """What a run is drawn from; ranges include their ends. Rates are per operation and kind of fault, or per step."""

    publishers: tuple[int, int] = (1, 3)
    commits: tuple[int, int] = (1, 7)
    operators: tuple[int, int] = (0, 2)
    channels: tuple[str, ...] = ("latest", "serving")
    collector: float = 0.7
    keep: tuple[int, int] = (1, 2)
    stale: float = 0.2
    faults: tuple[float, ...] = (0.0, 0.02, 0.1)
    kills: tuple[float, ...] = (0.0, 0.001, 0.005)


PROFILES = {
    "mixed": Profile(),
    "storm": Profile(publishers=(3, 6), commits=(0, 3), operators=(0, 2), collector=0.0, faults=(0.05, 0.12), kills=(0.0,)),
    "collection": Profile(
        commits=(6, 12), operators=(2, 4), channels=("serving",), collector=1.0, keep=(1, 1), stale=0.0, faults=(0.0, 0.01), kills=(0.0,)
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    counts: Counter[str]
    trace: str  # digest of all operations in their order


class World:
    """One run of the simulation."""

    def __init__(self, seed: int, profile: Profile, break_rule: Callable[[Catalog], None] | None = None) -> None:
        self.rng = Random(seed)
        self.profile = profile
        self.seen = Witness()
        self.trace: list[str] = []
        self.scheduler = Scheduler(self.rng, kill_rate=self.rng.choice(profile.kills), stop_rate=self.rng.choice((0.0, 0.02, 0.1)))
        self.clock = BatonClock(self.scheduler)
        self.stale = self.rng.random() < profile.stale
        faults = _faults(self.rng.choice(profile.faults), seed, stale=self.stale)
        self.store = MemoryStore("sim", faults=faults, clock=self.clock)
        self._break = break_rule

    def catalog(self) -> Catalog:
        rng = self._fork()
        catalog = Catalog(
            BatonStore(self.store, self.scheduler, self.trace),
            RUN,
            clock=self.clock,
            capability="full",
            patience=PATIENCE,
            new_id=lambda: f"{rng.getrandbits(64):016x}",
            jitter=lambda upper: rng.random() * upper,
        )
        if self._break is not None:
            self._break(catalog)
        _watch(catalog._writer, self.seen)
        return catalog

    def populate(self) -> None:
        rng, profile, spawn = self.rng, self.profile, self.scheduler.spawn
        for n in range(rng.randint(*profile.publishers)):
            spawn(f"publisher{n}", Publisher(self.catalog(), self._fork(), self.seen, f"publisher{n}", rng.randint(*profile.commits)))
        for n in range(rng.randint(*profile.operators)):
            spawn(f"operator{n}", Operator(self.catalog(), self._fork(), self.seen, rng.choice(profile.channels), rng.randint(1, 4)))
        if self.stale:
            return  # who collects or follows needs reads that see the latest write
        if rng.random() < profile.collector:
            spawn("collector", Collector(self.catalog(), self._fork(), rng.randint(*profile.keep), rng.randint(1, 6)))
        if rng.random() < 0.5:
            spawn("reader", Reader(self.catalog(), self.seen, rng.choice(("latest", "serving")), rng.randint(1, 20)))

    def _fork(self) -> Random:
        return Random(self.rng.getrandbits(64))

    def run(self) -> Outcome:
        self.populate()
        self.scheduler.run(STEPS)
        for actor in self.scheduler.actors:
            assert not actor.defect, f"{actor.name} failed:\n{actor.defect}"
            assert actor.error is None or is_expected(actor.error), f"{actor.name} ended with {actor.error!r}"
        self.store.set_faults(Faults())
        return Outcome(self._validate(), blake3("\n".join(self.trace).encode()).hexdigest())

    def _validate(self) -> Counter[str]:
        assert not self.seen.problems, self.seen.problems[0]
        state = validators.State(self._get, f"{RUN}/")
        moves = {channel: [e["body"] for e in state.history(channel)] for channel in ("latest", "serving")}
        for channel, found in moves.items():
            validators.check_history(found, channel)
        validators.check_epochs(moves["latest"], self.seen)
        validators.check_outcomes({m["write_id"] for found in moves.values() for m in found}, self.seen)
        committed = validators.check_versions(state, moves["latest"], self.seen)
        movers = [actor for actor in self.scheduler.actors if actor.name.startswith(("operator", "publisher"))]
        excused = any(actor.died or isinstance(actor.error, Unavailable) for actor in movers)
        stuck = validators.check_heads(state, somebody_died=excused)
        return Counter(
            versions=len(committed),
            moves=len(moves["latest"]) + len(moves["serving"]),
            acknowledged=len(self.seen.acknowledged),
            condemned=sum(state.condemned(version) for version in committed),
            fenced_or_beaten=len(self.seen.lost),
            unsettled=len(self.seen.unsure),
            retracted=self.seen.retracted,
            killed=sum(actor.died for actor in self.scheduler.actors),
            faults=sum(operation.fault is not None for operation in self.store.log),
            operations=len(self.trace),
            stuck=stuck,
        )

    def _get(self, key: str) -> bytes | None:
        try:
            return self.store.get(key, max_bytes=1 << 30).data
        except NotFound:
            return None


def _faults(rate: float, seed: int, *, stale: bool) -> Faults:
    return Faults(
        seed=seed,
        unavailable=rate,
        lost_applied=rate,
        lost_dropped=rate,
        conflict_409=rate,
        precondition_412=rate,
        crash_before=rate / 50,
        crash_after=rate / 50,
        stale_read=0.1 if stale else 0.0,
    )


def _watch(writer: MoveWriter, seen: Witness) -> None:
    """Notes what the maker of every move was told."""
    inner = writer.swap

    def swap(before: Head | None, move: Move, envelope: Envelope) -> Head:
        try:
            head = inner(before, move, envelope)
        except LOST:
            seen.lost.add(move.write_id)
            raise
        except OutcomeUnknown:
            seen.unsure.add(move.write_id)
            raise
        seen.won.add(move.write_id)
        return head

    writer.swap = swap  # type: ignore[method-assign]


def run(seed: int, profile: str = "", break_rule: Callable[[Catalog], None] | None = None) -> Outcome:
    """One simulation; the seed chooses the profile where none is named. Raises `AssertionError` naming what does not hold."""
    chosen = profile or sorted(PROFILES)[seed % len(PROFILES)]
    return World(seed, PROFILES[chosen], break_rule).run()


def campaign(seeds: Iterable[int], profile: str, without: str) -> bool:
    """Runs all seeds, tells how it went, and whether all held."""
    totals: Counter[str] = Counter()
    runs = failures = 0
    for seed in seeds:
        runs += 1
        try:
            totals += run(seed, profile, RULES[without] if without else None).counts
        except (AssertionError, WeightsyncError) as error:
            failures += 1
            sys.stdout.write(f"seed {seed}: {error}\n")
    sys.stdout.write(f"{runs} runs, {failures} failed: {dict(sorted(totals.items()))}\n")
    return not failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Random simulation of the commit protocol.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next ones count up")
    parser.add_argument("--profile", choices=PROFILES, default="", help="what every run is drawn from (default: the seed chooses)")
    parser.add_argument("--without", choices=RULES, default="", help="take a rule out of the protocol: failures must show")
    given = parser.parse_args()
    return 0 if campaign(range(given.seed, given.seed + given.runs), given.profile, given.without) else 1


if __name__ == "__main__":
    sys.exit(main())
