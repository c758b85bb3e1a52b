"""Damages every object of a small store in every way, and counts what is refused: `python -m tests.e2e.corrupt --all`.

    flips     every single bit of every object               cuts      every shorter length of every object
    grown     bytes added at the end                         gone      the object deleted
    swaps     every object under every other one's key, and every object of a foreign run of the same name and layout under ours
    behind    every bit of every shard and record with the digest above it made good: what a broken digest would leave to the decoders

The real subscriber looks at each damaged store, and `verify` where the subscriber does not read the object (and for a share of the rest).
Refused means: an error of one of the four kinds, the image and the output bit for bit what they were. The result goes to `results/`.
"""

import argparse
import json
import logging
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.e2e.behind import behind
from tests.e2e.damage import Host, Stage, make_stages, replaced, store_of
from weightsync.clock import SYSTEM
from weightsync.errors import WeightsyncError
from weightsync.store.memory import MemoryStore

RESULT = Path(__file__).parent / "results" / "corruption.json"
VERSIONS = range(1, 7)
TYPED = {"corrupt", "unsupported", "unavailable", "compacted"}


@dataclass
class Tally:
    """What was tried and what came of it; `accepted` lists damage that was not refused, which must stay empty."""

    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    stale: int = 0  # a head replaced by one that was true before: nothing changes
    accepted: list[str] = field(default_factory=list)

    def __add__(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(self.tried + other.tried, self.refused + other.refused, self.stale + other.stale, self.accepted + other.accepted)

    def note(self, way: str, kind: str | None, what: str) -> None:
        """One attempt; `kind` of the refusal, None: there was none."""
        self.tried[way] += 1
        if kind in TYPED:
            self.refused[kind] += 1
        else:
            self.accepted.append(f"{way} {what}: {kind}")


def flips(data: bytes, stride: int, first: int) -> Iterator[tuple[int, bytes]]:
    """Every `stride`-th bit, flipped."""
    for bit in range(first % stride, len(data) * 8, stride):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(changed)


def read_by_subscribers(key: str) -> bool:
    """History and the run's own record are for publishers, operators and `verify`."""
    return not (key.endswith("/run.json") or "/log/" in key or "/channels/serving/" in key)


def unprovable(key: str, other: str) -> bool:
    """Well-formed records that nothing else names: without signatures and memory nobody can tell.

    The run's own record of a run of the same name, and an older head of a channel for who looks at it for the first time.
    """
    if key.endswith("/run.json"):
        return other.endswith("/run.json")
    return "/channels/serving/" in key and "/channels/serving/" in other and key.endswith("/head")


class Campaign:
    """One store over all its stages. `stride` 1 is everything, else every stride-th bit and length."""

    def __init__(self, home: Path, *, stride: int, seed: int = 7) -> None:
        self.home, self.stride = home, stride
        self.tally = Tally()
        self.stages = make_stages(home, seed)
        self._foreign = make_stages(home / "foreign", seed + 1000)
        self._host = Host(home / "host")

    def run(self, versions: Iterable[int] = VERSIONS) -> Tally:
        """These stages, ascending, each from a host that holds the version before."""
        for stage, foreign in zip(self.stages, self._foreign, strict=True):
            store = store_of(stage.objects)
            self._host.restart(store)
            if stage.version not in versions:
                self._host.follow()
                continue
            self._host.prepare()
            # Files come last: they are read when the image is the new version already.
            for key in sorted(stage.new, key=lambda key: "/files/" in key):
                self._damage(store, stage, foreign, key)
            self._host.restart(store)
            if self._host.follow() != stage.version or self._host.delivered() != stage.files or self._host.verify():
                self.tally.accepted.append(f"version {stage.version} is not delivered although nothing is damaged any more")
            behind(self.home / "behind", stage, self.tally.note, self.stride)
        self._host.close()
        return self.tally

    def _damage(self, store: MemoryStore, stage: Stage, foreign: Stage, key: str) -> None:
        data = stage.objects[key]
        if "/files/" in key:
            self._bring_image(store, key)
        image, delivered = self._host.image(), self._host.delivered()
        start = len(key) + stage.version
        for bit, changed in flips(data, self.stride, start):
            self._try(store, key, "flips", changed, f"bit {bit}", image, verify=self.stride > 1 or bit % 8 == bit // 8 % 8)
        for length in range(start % self.stride, len(data), self.stride):
            self._try(store, key, "cuts", data[:length], f"{length} bytes", image, verify=True)
        for extra in (b"\0", b" ", b"\n", b"}", data):
            self._try(store, key, "grown", data + extra, f"{len(extra)} more", image, verify=True)
        # Where nothing was accepted before, a channel that is not there has no version yet.
        if "/channels/serving/head" not in key and not (key.endswith("/latest/head") and stage.version == 1):
            self._try(store, key, "gone", None, "", image, verify=True)
        others = {name: value for name, value in stage.objects.items() if name != key} | {
            f"foreign {name}": value for name, value in foreign.objects.items()
        }
        for number, (name, value) in enumerate(others.items()):
            # Who has accepted nothing yet and asks for no signature takes the first head for true.
            first_use = key.endswith("/latest/head") and stage.version == 1
            if value != data and not first_use and not unprovable(key, name) and (self.stride == 1 or number % 7 == start % 7):
                self._try(store, key, "swaps", value, f"<- {name}", image, verify=True)
        if self._host.delivered() != delivered:
            self.tally.accepted.append(f"{key}: the output was touched")

    def _bring_image(self, store: MemoryStore, key: str) -> None:
        with replaced(store, key, b"no file"):
            self._attempt()

    def _attempt(self) -> str | None:
        try:
            self._host.follow()
        except WeightsyncError as error:
            return error.kind
        return None

    def _try(self, store: MemoryStore, key: str, way: str, data: bytes | None, what: str, image: bytes, *, verify: bool) -> None:  # noqa: PLR0917
        what = f"{key} {what}"
        with replaced(store, key, data):
            if "/layouts/" in key or "/log/" in key:
                self._host.restart(store)
            if not read_by_subscribers(key) or (way == "grown" and "/shards/" in key):
                # The run's record is all that says there is a run. What a shard has beyond its size is never read.
                kind = next(iter(self._host.verify()), None)
                self.tally.note(way, "unavailable" if kind == "not_found" and key.endswith("/run.json") else kind, what)
                return
            if way == "swaps" and key.endswith("/latest/head") and "/latest/log/" in what and self._is_stale():
                self.tally.stale += 1
            else:
                self.tally.note(way, self._attempt(), what)
            if self._host.image() != image:
                self.tally.accepted.append(f"{way} {what}: the image was touched")
            if verify and not key.endswith("/latest/head"):
                self.tally.note(f"{way} (verify)", next(iter(self._host.verify()), None), what)

    def _is_stale(self) -> bool:
        """An older record of our own: serving on what is held is right."""
        held = self._host.replica.version
        return self._attempt() is None and self._host.replica.version == held


def one_version(version: int, stride: int, seed: int) -> tuple[list[Stage], Tally]:
    """What damage to one version's objects leads to, in a process of its own."""
    logging.disable()  # every refusal is logged, and there are hundreds of thousands
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as home:
        campaign = Campaign(Path(home), stride=stride, seed=seed)
        return campaign.stages, campaign.run([version])


def main() -> int:
    """Prints and keeps the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every bit and length; else a sample")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help=f"default with --all: {RESULT.name}")
    options = parser.parse_args()
    began, tally = SYSTEM.monotonic_s(), Tally()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for made, part in pool.map(partial(one_version, stride=1 if options.all else 97, seed=options.seed), VERSIONS):
            stages, tally = made, tally + part
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    result = {
        "commit": commit.stdout.strip(),
        "machine": f"{platform.machine()} {platform.system()}, Python {platform.python_version()}",
        "seed": options.seed,
        "every_bit": options.all,
        "versions": len(stages),
        "objects": len(stages[-1].objects),
        "store_bytes": sum(map(len, stages[-1].objects.values())),
        "tried": dict(sorted(tally.tried.items())),
        "tried_in_all": sum(tally.tried.values()),
        "refused": dict(sorted(tally.refused.items())),
        "old_heads_ignored": tally.stale,
        "accepted": len(tally.accepted),
        "seconds": round(SYSTEM.monotonic_s() - began, 1),
    }
    text = json.dumps(result, indent=1) + "\n"
    sys.stdout.write(text + "".join(f"ACCEPTED {line}\n" for line in tally.accepted[:50]))
    if options.all or options.out:
        (options.out or RESULT).parent.mkdir(exist_ok=True)
        (options.out or RESULT).write_text(text)
    return 1 if tally.accepted else 0


if __name__ == "__main__":
    sys.exit(main())
