"""Writes a golden store: `python -m tests.format.golden_store OUT`. What lies in `golden/` was written once and must stay readable.

A new one is made only together with a new version of the format and of `proto/FORMAT.md`.
"""

import json
import sys
from pathlib import Path

from blake3 import blake3

from tests.publisher import checkpoints
from tests.publisher.world import World
from weightsync.store.file import FileStore

VERSIONS = 3


def states() -> list[checkpoints.Weights]:
    """The weights of versions 1 to 3: a snapshot, a sparse step, a dense one."""
    first = checkpoints.make(seed=7, size=1500)
    second = checkpoints.step(first, seed=8, share=0.02)
    return [first, second, checkpoints.step(second, seed=9, share=0.7)]


def digests(tensors: dict[str, bytes]) -> dict[str, str]:
    """What the tensors' bytes are, without their bytes."""
    return {name: blake3(data).hexdigest() for name, data in sorted(tensors.items())}


def main(out: Path) -> None:
    """Publishes the states, and notes what every version must read as."""
    out.mkdir(parents=True)
    world = World(out / "work", FileStore(out / "store"))
    publisher = world.publisher()
    publisher.start()
    for number, weights in enumerate(states(), 1):
        publisher.publish_checkpoint(world.checkpoint(weights, shards=2), step=10 * number)
    expected = {}
    for version in range(1, VERSIONS + 1):
        files = world.restored(version)
        expected[version] = {"files": {name: blake3(data).hexdigest() for name, data in files.items()}}
    for version, weights in enumerate(states(), 1):
        expected[version]["tensors"] = digests({name: data for name, (_, _, data) in weights.items()})
    world.close()
    (out / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
