"""Random simulation of collection: the real collector beside publishers, operators, keepers and readers, killed and stopped anywhere.

    python -m tests.retention.simulate --runs 5000 --seed 1 [--without "needs are read again before condemning"]

What must hold: whatever is not condemned can be rebuilt; only what the boundary gives up is deleted; a pinned or leased version stays; no
head stays on a condemned version; readers never meet anything but `Compacted` and a store that does not answer.
"""

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterable

from tests.catalog import validators
from tests.catalog.actors import Operator
from tests.catalog.simulate import PROFILES, Profile, World
from tests.retention import alive
from tests.retention.actors import ChainReader, Keeper, Notes, RealCollector, WholePublisher
from tests.retention.sabotage import RULES, Rule
from weightsync.errors import Unavailable, WeightsyncError
from weightsync.store.memory import MemoryStore

STEPS = 3000
COLLECTION = Profile(
    publishers=(1, 3), commits=(3, 9), operators=(0, 3), stale=0.0, faults=(0.0, 0.0, 0.01, 0.05), kills=(0.0, 0.0005, 0.003)
)
PROFILES["retention"] = COLLECTION


class Dump:
    """A memory store, read as a whole."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def dump(self) -> dict[str, bytes]:
        found = {key: states[-1].data for key, states in self._store._states.items()}
        return {key: data for key, data in found.items() if data is not None}


class GarbageWorld(World):
    """One run of the simulation."""

    def __init__(self, seed: int, rule: Rule | None = None) -> None:
        self.rule = rule or Rule()
        super().__init__(seed, COLLECTION, self.rule.catalog)
        self.notes = Notes()
        self._watch_deletes()

    def _watch_deletes(self) -> None:
        delete, dump = self.store.delete, Dump(self.store)

        def checked(key: str) -> None:
            if not key.startswith(("sim/pins/", "sim/leases/")) and not alive.State(dump).gone(key.removeprefix("sim/")):
                self.notes.problems.append(f"{key} is deleted, which the boundary has not given up")
            delete(key)

        self.store.delete = checked  # type: ignore[method-assign]

    def populate(self) -> None:
        rng, profile, spawn, notes = self.rng, self.profile, self.scheduler.spawn, self.notes
        dump = Dump(self.store)
        for n in range(rng.randint(*profile.publishers)):
            spawn(f"publisher{n}", WholePublisher(self.catalog(), self._fork(), self.seen, f"p{n}", rng.randint(*profile.commits)))
        for n in range(rng.randint(*profile.operators)):
            channel = rng.choice(profile.channels)
            spawn(f"operator{n}", Operator(self.catalog(), self._fork(), self.seen, channel, rng.randint(1, 4)))
        for n in range(rng.choice((1, 1, 2))):
            spawn(f"collector{n}", RealCollector(self.catalog(), self.rule.collector, self._fork(), notes, rng.randint(2, 8)))
        for n in range(rng.randrange(3)):
            kind = rng.choice(("lease", "lease" if n else "pin"))
            spawn(f"keeper{n}", Keeper(self.catalog(), dump, self._fork(), notes, kind=kind, name=f"keeper{n}"))
        spawn("reader", ChainReader(self.catalog(), self.clock, notes, rng.choice(("latest", "serving")), rng.randint(1, 20)))

    def run_all(self) -> tuple[Counter[str], str]:
        with self.rule.patched():
            outcome = self.run()
        return outcome.counts, outcome.trace

    def _validate(self) -> Counter[str]:
        assert not self.seen.problems, self.seen.problems[0]
        assert not self.notes.problems, self.notes.problems[0]
        state = alive.State(Dump(self.store))
        state.check()
        found = validators.State(self._get, "sim/")
        validators.check_history([e["body"] for e in found.history("latest")], "latest")
        for version, digest in self.seen.acknowledged:
            assert state.committed.get(version) == digest, f"acknowledged version {version} is lost"
        movers = [actor for actor in self.scheduler.actors if actor.name.startswith(("operator", "publisher"))]
        excused = any(actor.died or isinstance(actor.error, Unavailable) for actor in movers)
        for channel in ("latest", "serving"):
            assert excused or not state.condemned(state.head(channel)), f"channel {channel} stays on a condemned version"
        return Counter(vars(self.notes) | {"problems": 0}) + Counter(
            versions=len(state.committed),
            standing=sum(not state.condemned(version) for version in state.committed),
            killed=sum(actor.died for actor in self.scheduler.actors),
            operations=len(self.trace),
        )


def run(seed: int, rule: Rule | None = None) -> tuple[Counter[str], str]:
    """One simulation: counts, and a digest of its trace. Raises `AssertionError` naming what does not hold."""
    return GarbageWorld(seed, rule).run_all()


def campaign(seeds: Iterable[int], without: str) -> dict[str, int]:
    """Runs all seeds; the sums, with `runs` and `failed`."""
    totals: Counter[str] = Counter()
    for seed in seeds:
        totals["runs"] += 1
        try:
            totals += run(seed, RULES[without] if without else None)[0]
        except (AssertionError, WeightsyncError) as error:
            totals["failed"] += 1
            sys.stdout.write(f"seed {seed}: {error}\n")
    return dict(sorted(totals.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Random simulation of collection.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", choices=RULES, default="", help="take a rule out: failures must show")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    totals = campaign(range(given.seed, given.seed + given.runs), given.without)
    sys.stdout.write(f"{totals}\n")
    return 1 if totals.get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
