"""A publisher or a subscriber as a process of its own, with small chunks and shards so that small weights have many of them.

python actor.py publish URL HOME CHECKPOINT...        one after another; prints a line of JSON for each
python actor.py follow URL HOME OUT                   once
"""

import json
import sys
from pathlib import Path

from weightsync.clock import SYSTEM
from weightsync.config import load
from weightsync.errors import Fenced, WeightsyncError
from weightsync.publisher.commit import Settings
from weightsync.publisher.source import Chunking
from weightsync.store.open import open_store
from weightsync.wiring import open_publisher, open_subscriber


def say(value: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def publish(url: str, home: str, *paths: str) -> int:
    settings = load(store=url, run="run", cache=Path(home), images=Path(home) / "images")
    small = Settings(threads=2, shard_bytes=512, chunking=Chunking(1024))
    with open_publisher(settings, open_store(url), who=Path(home).name, publish=small) as publisher:
        for path in paths:
            try:
                done = publisher.publish_checkpoint(Path(path), note=path)
            except Fenced as error:
                say({"fenced": str(error)})
                return 1
            say({"version": done.version, "note": path})
            SYSTEM.sleep_s(0.01)
    return 0


def follow(url: str, home: str, out: str) -> int:
    settings = load(store=url, run="run", cache=Path(home), images=Path(home) / "images")
    with open_subscriber(settings, open_store(url), out=Path(out)) as subscriber:
        step = subscriber.once()
        say({"version": step.version.version if step.version else 0})
    return 0


if __name__ == "__main__":
    try:
        sys.exit({"publish": publish, "follow": follow}[sys.argv[1]](*sys.argv[2:]))
    except WeightsyncError as error:
        sys.stderr.write(f"{error.kind}: {error}\n")
        sys.exit(error.exit_code)
