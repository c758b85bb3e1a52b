"""Anything in any order, on real weights: publish, fork, roll back, pin, lease, collect, crash, subscribe, catch up, add snapshots, copy.

    python -m tests.retention.stateful --examples 1000 --steps 50 --result tests/results/retention_stateful.json

After every step: what is served has the right root; every version that may be asked for can be rebuilt, bit for bit, from what is left;
only what the boundary gives up is missing; numbers and sequences never decrease.
"""

import argparse
import json
import logging
import random  # noqa: TID251  hypothesis draws the seeds
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.replica.world import random_weights, step
from tests.retention import alive
from tests.retention.simulate import Dump
from tests.retention.tools import RUN, Bench
from weightsync.clock import SYSTEM
from weightsync.errors import Compacted, Conflict, Fenced, Invalid, WeightsyncError
from weightsync.replica.fetch import ShardSource
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.retention.copy import Copier
from weightsync.retention.holders import StoreHolder
from weightsync.retention.repair import Repairer
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Crashed, Fault

COUNTS: Counter[str] = Counter()
PICK = st.integers(0, 1 << 30)


class Run(RuleBasedStateMachine):
    """One run, one copy of it, subscribers that come and go."""

    @initialize()
    def begin(self) -> None:
        COUNTS["runs"] += 1
        self.stack = ExitStack()
        self.bench = Bench(Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))))
        self.copy = MemoryStore("copy", clock=self.bench.clock)
        self.replicas: list[tuple[Replica, int, str]] = []
        self.leases: dict[int, float] = {}
        self.sequences = {"latest": 0, "serving": 0}
        self.highest = 0
        self.names = self.steps = 0
        self.bench.publish(1)

    def teardown(self) -> None:
        for replica, _, _ in getattr(self, "replicas", []):
            replica.close()
        if hasattr(self, "stack"):
            self.stack.close()

    # ------------------------------------------------------------------------------------------------------------ writers

    @rule(count=st.integers(1, 3), snapshot=st.booleans())
    def publish(self, count: int, snapshot: bool) -> None:
        for _ in range(count):
            self._commit(lambda: self._publish(snapshot))

    @rule(pick=PICK)
    def restart_elsewhere(self, pick: int) -> None:
        """Another publisher takes over; the old one is fenced, having left a payload without a head."""
        world = self.bench.world
        old, world.claim = world.claim, self.bench.catalog().claim(f"other-{pick}")
        keys = self.bench.catalog().keys
        self.bench.store.put(keys.shard(old.writer, world.claim.head.move.highest + 1, 1, f"{pick:064x}"), b"left behind")
        COUNTS["claims"] += 1

    def _publish(self, snapshot: bool) -> None:
        world, layout = self.bench.world, self.bench.layout
        head = world.claim.head.version
        last = world.weights.get(head.version) if head else None
        new = step(layout, last, len(world.records) + 1, 0.03) if last else random_weights(layout, 1)
        records, weights, layouts = dict(world.records), dict(world.weights), dict(world.layouts)
        if head is not None:  # `publish` builds on the highest number, and here it is to build on the head
            for number in [n for n in records if n > head.version]:
                for table in (world.records, world.weights, world.layouts):
                    del table[number]
        try:
            world.publish(layout, new, snapshot=snapshot)
        finally:
            world.records.update({**records, **world.records})
            world.weights.update({**weights, **world.weights})
            world.layouts.update({**layouts, **world.layouts})

    def _commit(self, act: object) -> None:
        try:
            act()  # type: ignore[operator]
            COUNTS["published"] += 1
        except (Compacted, Fenced, Conflict):
            COUNTS["refused"] += 1
            self.bench.world.claim = self.bench.catalog().claim("again")

    @rule(pick=PICK, channel=st.sampled_from(["latest", "serving"]))
    def roll(self, pick: int, channel: str) -> None:
        """Forward, back, or a fork: the next publish grows from wherever `latest` is."""
        version = self._any(pick)
        try:
            self.bench.catalog().move(channel, version, expected_sequence=None, who="op", why="")
            COUNTS["moves"] += 1
        except Compacted:
            assert self._hit(version)
            COUNTS["refused"] += 1
        except (Conflict, Invalid):
            return
        if channel == "latest":
            self.bench.world.claim = self.bench.catalog().claim("next")

    @rule(pick=PICK)
    def pin(self, pick: int) -> None:
        version = self._any(pick)
        try:
            self.bench.catalog().put_pin(version, who="op", why="")
            COUNTS["pins"] += 1
        except Compacted:
            assert self._hit(version)

    @precondition(lambda self: self.bench.listed("pins/"))
    @rule(pick=PICK)
    def unpin(self, pick: int) -> None:
        pins = self.bench.listed("pins/")
        self.bench.catalog().drop_pin(int(pins[pick % len(pins)].removeprefix("pins/")))

    @rule(pick=PICK, seconds=st.integers(1, 2000))
    def lease(self, pick: int, seconds: int) -> None:
        version, until = self._any(pick), self.bench.clock.now_s() + seconds
        try:
            self.bench.catalog().put_lease("host", version, int(until * 1000))
            self.leases[version] = until
            COUNTS["leases"] += 1
        except Compacted:
            assert self._hit(version)

    @rule(seconds=st.sampled_from([1, 60, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.bench.clock.advance(seconds)

    # ---------------------------------------------------------------------------------------------------------- collector

    @rule(keep=st.integers(1, 4), grace_s=st.sampled_from([0, 0, 100, 3600]), snapshots=st.booleans())
    def collect(self, keep: int, grace_s: int, snapshots: bool) -> None:
        done = self.bench.collect(keep, grace_s=grace_s, snapshots=snapshots)
        assert not done.broken
        COUNTS["collections"] += 1
        COUNTS["deleted"] += done.objects
        COUNTS["condemned"] += len(done.condemned)
        COUNTS["snapshots"] += done.snapshot is not None

    @rule(count=st.integers(2, 4), keep=st.integers(1, 2), snapshots=st.booleans())
    def go_on_and_collect(self, count: int, keep: int, snapshots: bool) -> None:
        """What happens most in a long run."""
        for _ in range(count):
            self._commit(lambda: self._publish(False))
        self.collect(keep, 0, snapshots)

    @rule(keep=st.integers(1, 3), skip=st.integers(0, 25), after=st.booleans())
    def collect_and_die(self, keep: int, skip: int, after: bool) -> None:
        self.bench.store.inject(Fault.CRASH_AFTER if after else Fault.CRASH_BEFORE, skip=skip)
        try:
            self.bench.collect(keep)
        except Crashed:
            COUNTS["killed"] += 1
        self.bench.store._chooser.planned.clear()

    @precondition(lambda self: self.steps % 3 == 0)
    @rule(pick=PICK)
    def copy_and_lose(self, pick: int) -> None:
        """Everything to another store; then an object here is lost, and comes back from there."""
        catalog = self.bench.catalog()
        there = MemoryStore(f"copy-{pick}", clock=self.bench.clock)
        done = Copier(catalog, self.bench.catalog(there), threads=1).copy()
        assert not done.damaged
        here = self.bench.listed("shards/") + self.bench.listed("digests/")
        lost = f"{RUN}/{here[pick % len(here)]}"
        data = self.bench.store.get(lost, max_bytes=1 << 30).data
        self.bench.store.delete(lost)
        Repairer(catalog, [StoreHolder(there)], threads=1).repair()
        COUNTS["copies"] += 1
        if lost not in [f"{RUN}/{key}" for key in self.bench.listed()]:  # nobody needs it: a leftover
            self.bench.store.put(lost, data)

    # ------------------------------------------------------------------------------------------------------------ readers

    @rule(channel=st.sampled_from(["latest", "serving"]))
    def subscribe(self, channel: str) -> None:
        if len(self.replicas) < 3:
            self.names += 1
            self.replicas.append((Replica(self.bench.home / f"host-{self.names}", threads=1), 0, channel))
            self._follow(len(self.replicas) - 1)

    @precondition(lambda self: self.replicas)
    @rule(pick=PICK)
    def catch_up(self, pick: int) -> None:
        self._follow(pick % len(self.replicas))

    @precondition(lambda self: self.replicas)
    @rule(pick=PICK)
    def ask_for(self, pick: int) -> None:
        """A replica is sent to any version: it gets there, or is told that the version is gone."""
        number = pick % len(self.replicas)
        replica, _, channel = self.replicas[number]
        version = self._any(pick // 7)
        catalog = self.bench.catalog()
        held = replica.version
        try:
            catalog.check_kept(version)
            update(replica, catalog, catalog.manifest_of(version), ShardSource(catalog))
            self.replicas[number] = (replica, version, channel)
        except Compacted:
            assert self._hit(version)
            assert replica.version == held
            COUNTS["behind"] += 1

    def _follow(self, number: int) -> None:
        replica, _, channel = self.replicas[number]
        catalog = self.bench.catalog()
        head = catalog.head(channel)
        if head is None or head.version is None:
            return
        update(replica, catalog, catalog.manifest_of(head.version.version, head.version.manifest), ShardSource(catalog))
        self.replicas[number] = (replica, head.version.version, channel)
        COUNTS["caught_up"] += 1

    def _any(self, pick: int) -> int:
        versions = [ref.version for ref in self.bench.catalog().committed()]
        return versions[pick % len(versions)]

    def _hit(self, version: int) -> bool:
        boundary, _ = self.bench.catalog().boundary()
        return boundary is not None and boundary.hit(version)

    # --------------------------------------------------------------------------------------------------------- what holds

    @invariant()
    def everything_holds(self) -> None:
        if not hasattr(self, "bench"):
            return
        COUNTS["steps"] += 1
        state = alive.State(Dump(self.bench.store), RUN)
        state.check()
        for channel in ("latest", "serving"):
            assert not state.condemned(state.head(channel)), f"{channel} is stuck"
            sequence = self._sequence(channel)
            assert sequence >= self.sequences[channel], f"{channel} went back"
            self.sequences[channel] = sequence
        assert max(state.committed, default=0) >= self.highest, "numbers went back"
        self.highest = max(state.committed, default=0)
        for version, until in self.leases.items():
            assert until <= self.bench.clock.now_s() or not state.condemned(version), "a leased version went"
        for key in self.bench.listed("pins/"):
            assert not state.condemned(int(key.removeprefix("pins/"))), "a pinned version went"
        for replica, version, _ in self.replicas:
            if version:
                assert bytes(replica.image.data) == self.bench.world.image(version), "another state is served"
        self.steps += 1
        if self.steps % 5 == 0:
            self._rebuild(state)

    def _sequence(self, channel: str) -> int:
        head = self.bench.catalog().head(channel)
        return head.move.sequence if head else 0

    def _rebuild(self, state: alive.State) -> None:
        """One of the versions that may be asked for, from the store alone."""
        stand = [version for version in state.committed if not state.hit(version)]
        version = random.Random(self.steps).choice(stand)
        assert self.bench.is_whole(version), f"version {version} is another"
        COUNTS["rebuilt"] += 1


def run(examples: int, steps: int, *, derandomize: bool = False, shrink: bool = True) -> dict[str, int]:
    """Runs the machine; what went on."""
    COUNTS.clear()
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=derandomize,
        database=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
    )
    run_state_machine_as_test(Run, settings=chosen)
    return dict(sorted(COUNTS.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Stateful campaign of retention.")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    began_s = SYSTEM.monotonic_s()
    try:
        counts, failure = run(given.examples, given.steps), ""
    except (AssertionError, WeightsyncError) as error:
        counts, failure = dict(COUNTS), f"{type(error).__name__}: {error}"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    document = {
        "command": f"python -m tests.retention.stateful --examples {given.examples} --steps {given.steps}",
        "commit": commit,
        "counts": counts,
        "failure": failure,
        "seconds": round(SYSTEM.monotonic_s() - began_s, 1),
    }
    if given.result:
        given.result.parent.mkdir(parents=True, exist_ok=True)
        given.result.write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"{json.dumps(document)}\n")
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
