"""Plants faults in a collected run, one at a time, and sees that `weightsync verify` finds and names each of them.

    python -m tests.retention.faults --faults 500 --result tests/results/retention_faults.json

The run has been collected: it holds objects of condemned versions, a collector's snapshot, a pin and a second channel. Faults: a bit
flipped, an object missing, two swapped, cut short, or replaced by the same object of another run. Named means: the report has the object's
key, or the beginning of its digest.
"""

import argparse
import io
import json
import logging
import random  # noqa: TID251  seeded
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tests.retention.tools import RUN, Bench
from weightsync.cli.app import run as weightsync
from weightsync.clock import SYSTEM
from weightsync.store import memory

KINDS = ("flipped", "missing", "swapped", "truncated", "foreign")
# A run without a boundary is one that was never collected; a boundary or a run's record of another run of that name is as good as ours.
UNDETECTABLE = {("missing", "gc/boundary"), ("foreign", "gc/boundary"), ("foreign", "run.json")}
UNUSED = ("pins/", "leases/")  # operators' wishes: what is not readable there keeps all the same


@dataclass(frozen=True)
class Fault:
    """One fault, and what came of it."""

    kind: str
    key: str
    found: bool
    named: bool
    report: str


class Ground:
    """A store in which faults are planted and taken back."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.bench = _run(home / "ours", 1)
        self.other = _objects(_run(home / "theirs", 2))
        self.objects = {key: data for key, data in _objects(self.bench).items() if not key.startswith(tuple(f"{RUN}/{u}" for u in UNUSED))}
        memory._named["faults"] = self.bench.store

    def verify(self) -> tuple[int, str]:
        """Exit code and everything that was said."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = weightsync(["verify", "--store", "mem://faults", "--run", RUN, "--json"])
        return code, out.getvalue() + err.getvalue()

    def plant(self, kind: str, rng: random.Random) -> Fault:
        """Plants one, looks, and takes it back."""
        key = rng.choice([k for k in sorted(self.objects) if (kind, k.removeprefix(f"{RUN}/")) not in UNDETECTABLE])
        store, data = self.bench.store, self.objects[key]
        partner = rng.choice([k for k in sorted(self.objects) if k != key and self.objects[k] != data])
        changed = {key: self._spoilt(kind, key, data, rng)}
        if kind == "swapped":
            changed = {key: self.objects[partner], partner: data}
        for at, now in changed.items():
            store.delete(at) if now is None else store.put(at, now)
        try:
            code, report = self.verify()
        finally:
            for at in changed:
                store.put(at, self.objects[at])
        return Fault(kind, key, code in (1, 2, 3), any(_names(report, at) for at in changed), report)

    def _spoilt(self, kind: str, key: str, data: bytes, rng: random.Random) -> bytes | None:
        if kind == "flipped":
            bit = rng.randrange(len(data) * 8)
            return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
        if kind == "truncated":
            return data[: rng.randrange(len(data))]
        if kind == "foreign":
            return self._theirs(key, data)
        return None

    def _theirs(self, key: str, data: bytes) -> bytes:
        """What the other run has in that place; something of the same kind otherwise."""
        folder = key.rpartition("/")[0]
        same = [d for k, d in self.other.items() if k.rpartition("/")[0] == folder and d != data]
        alike = [d for k, d in self.other.items() if k.split("/")[1] == key.split("/")[1] and d != data]
        return self.other[key] if self.other.get(key, data) != data else [*same, *alike, b"foreign"][0]


def _run(home: Path, seed: int) -> Bench:
    """Eight versions of which four may be asked for, one by a snapshot that a collector made; some are held for a chain."""
    bench = Bench(home)
    bench.publish(1, density=0.1 * seed)
    bench.publish(3, density=0.02 * seed)
    catalog = bench.catalog()
    catalog.put_pin(3, who="op", why="release")
    bench.publish(4, density=0.3)
    bench.collect(2)
    bench.publish(2, density=0.02)
    for version in (7, 8):
        bench.catalog().move("serving", version, expected_sequence=None, who="op", why="")
    return bench


def _objects(bench: Bench) -> dict[str, bytes]:
    return {stat.key: bench.store.get(stat.key, max_bytes=1 << 30).data for stat in bench.store.list(f"{RUN}/")}


def _names(report: str, key: str) -> bool:
    if key.endswith("/head"):
        return f"channel {key.split('/')[2]}" in report
    if key.endswith("/run.json") and f"run '{RUN}' does not exist" in report:
        return True
    if "/payloads/0-g" in key and key.rpartition("/")[2] not in report:  # missing: nothing else in the store says what it was called
        return f"version {key.split('/')[2]}" in report
    return key.removeprefix(f"{RUN}/") in report or key.rpartition("/")[2][:12] in report


def campaign(home: Path, faults: int, seed: int) -> list[Fault]:
    """So many faults, all kinds in turn."""
    ground, rng = Ground(home), random.Random(seed)
    code, report = ground.verify()
    assert code == 0, report
    return [ground.plant(KINDS[number % len(KINDS)], rng) for number in range(faults)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Planted faults against `weightsync verify`.")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    began_s = SYSTEM.monotonic_s()
    with tempfile.TemporaryDirectory() as home:
        found = campaign(Path(home), given.faults, given.seed)
    missed = [f"{fault.kind} {fault.key}" for fault in found if not (fault.found and fault.named)]
    document = {
        "command": f"python -m tests.retention.faults --faults {given.faults} --seed {given.seed}",
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip(),
        "planted": dict(Counter(fault.kind for fault in found)),
        "by_object": dict(sorted(Counter(fault.key.split("/")[1] for fault in found).items())),
        "found": sum(fault.found for fault in found),
        "named": sum(fault.named for fault in found),
        "missed": missed,
        "seconds": round(SYSTEM.monotonic_s() - began_s, 1),
    }
    if given.result:
        given.result.parent.mkdir(parents=True, exist_ok=True)
        given.result.write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"{json.dumps(document)}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
