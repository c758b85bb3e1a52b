"""What the parts of a run tell about themselves, line by line: HOME/trainer.jsonl, HOME/WORKER.jsonl. For views and reports."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weightsync.clock import SYSTEM, Clock


class Journal:
    """Appends lines; each is whole or, after a kill, the last one is cut and ignored."""

    def __init__(self, path: Path, clock: Clock = SYSTEM) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._clock = path, clock

    def write(self, **facts: Any) -> None:
        """One line, with the time."""
        line = json.dumps({"at": self._clock.now_s(), **facts}, sort_keys=True)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(fd, f"\n{line}\n".encode())  # a line of its own also behind one that was cut
        finally:
            os.close(fd)


def read_journal(path: Path) -> Iterator[Mapping[str, Any]]:
    """All lines that are whole."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found
