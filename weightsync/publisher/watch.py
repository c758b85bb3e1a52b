"""Which checkpoints in a directory are complete and not yet published, and in which order they go.

A checkpoint is a subdirectory with safetensors files, or a safetensors file. It is complete when it can be opened (its index agrees with
its files, no file is cut) and nothing in it changed between two looks. Numbered names go by their last number, which is taken as the
step; others follow by name. The clock orders nothing.
"""

import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from weightsync.clock import new_write_id
from weightsync.errors import WeightsyncError
from weightsync.publisher.checkpoint import open_checkpoint
from weightsync.publisher.directory import SAFETENSORS
from weightsync.publisher.inputs import refuse

logger = logging.getLogger(__name__)

_LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)")
_UNFINISHED = re.compile(r"^(\.|tmp[-_.])|\.(tmp|temp|part|partial|incomplete)$", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """A complete checkpoint. `stamp` tells this content of the name from another."""

    path: Path
    step: int | None
    stamp: str


class Watcher:
    """Looks at `directory`. `memory` is a file that keeps what was published over restarts; it may be deleted.

    `published_step`: the step of the version committed last. Numbered checkpoints up to it that the memory does not know count as
    published, so that a publisher on a new machine goes on where the old one stopped.
    """

    def __init__(self, directory: Path, memory: Path, *, published_step: int | None = None) -> None:
        self._directory = directory
        self._memory = memory
        self._published_step = published_step
        self._done: dict[str, str] = _load(memory)
        self._seen: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._fresh = True

    def look(self) -> list[Found]:
        """What is ready now, in order. Call it again after a while: content is only believed when two looks agree."""
        ready, seen = [], {}
        for path in self._candidates():
            stamp = fingerprint(path)
            seen[path.name] = stamp
            step = step_of(path)
            if self._fresh and path.name not in self._done and self._is_old(step):
                self._done[path.name] = stamp
            if self._done.get(path.name) != stamp and self._seen.get(path.name) == stamp and self._opens(path, stamp):
                ready.append(Found(path, step, stamp))
        self._seen, self._fresh = seen, False
        return sorted(ready, key=lambda found: (found.step is None, found.step or 0, found.path.name))

    def published(self, found: Found) -> None:
        """Remembers that `found` need not be published again. Raises `OSError` when the memory cannot be written."""
        self._done[found.path.name] = found.stamp
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._memory.with_name(f".{self._memory.name}-{new_write_id()}")
        try:
            temporary.write_text(json.dumps(self._done, sort_keys=True), "utf-8")
            temporary.replace(self._memory)
        finally:
            temporary.unlink(missing_ok=True)

    def _candidates(self) -> Iterator[Path]:
        try:
            paths = sorted(self._directory.iterdir())
        except OSError as error:
            refuse(self._directory, error)
        yield from (path for path in paths if not _UNFINISHED.search(path.name) and (path.is_dir() or path.name.endswith(SAFETENSORS)))

    def _is_old(self, step: int | None) -> bool:
        return self._published_step is not None and step is not None and step <= self._published_step

    def _opens(self, path: Path, stamp: str) -> bool:
        if self._refused.get(path.name) == stamp:
            return False
        try:
            open_checkpoint(path).close()
        except WeightsyncError as error:
            self._refused[path.name] = stamp
            logger.warning("%s is not complete, or not a checkpoint: %s", path, error)
            return False
        return True


def step_of(path: Path) -> int | None:
    """The last number in the name: `checkpoint-500`, `step_000100`, `global_step_12_hf`."""
    name = path.name.removesuffix(SAFETENSORS)
    match = _LAST_NUMBER.search(name)
    return int(match[1]) if match and len(match[1]) <= 15 else None


def fingerprint(path: Path) -> str:
    """Digest of the names, sizes, times and inodes of all files, links followed."""
    hasher = blake3()
    for file in sorted(_files(path)):
        try:
            found = file.stat()
        except OSError:
            hasher.update(b"gone\0")
            continue
        hasher.update(
            f"{file.relative_to(path.parent)}\0{found.st_size}\0{found.st_mtime_ns}\0{found.st_ino}\0".encode("utf-8", "surrogateescape")
        )
    return hasher.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for root, _, names in os.walk(path):
        for name in names:
            yield Path(root, name)


def _load(memory: Path) -> dict[str, str]:
    try:
        value = json.loads(memory.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%s): starting without it", memory, error)
        return {}
    return {str(name): str(stamp) for name, stamp in value.items()} if isinstance(value, dict) else {}
