"""The demo's subscribers: real processes that follow the store and rebuild every version."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from weightsync.errors import Unavailable

PATIENCE_S = 60.0
SLOW_BYTES_PER_S = 20e6  # a subscriber that is slower than this is taken to hang
STOP_S = 10.0


class Follower:
    """One `weightsync subscribe` process. Its directory of checkpoints is `out`; all it keeps lies in `home` and `images`."""

    def __init__(self, name: str, arguments: Sequence[str], home: Path, images: Path) -> None:
        self.name = name
        self.out = home / name
        self._log = (home / f"{name}.log").open("w+b")
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        command = [sys.executable, "-m", "weightsync", "subscribe", *arguments]
        command += ["--out", str(self.out), "--cache", str(home / f"{name}.cache"), "--images", str(images / name), "--json"]
        # A session of its own: Ctrl-C reaches us alone, and we stop the followers in order.
        environment = _environment() | {"WEIGHTSYNC_IMAGES": str(home / f"{name}.images")}  # nothing of a demo stays in shared memory
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True, env=environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with suppress(ValueError):
                self._events.put(json.loads(line))
        self._events.put(None)

    def wait_for(self, version: int, nbytes: int) -> dict[str, Any]:
        """The event that says that `version`, of `nbytes`, is written out. Raises `Unavailable` with the process's own words."""
        patience_s = PATIENCE_S + nbytes / SLOW_BYTES_PER_S
        while True:
            try:
                event = self._events.get(timeout=patience_s)
            except queue.Empty:
                raise Unavailable(f"{self.name} did not rebuild version {version} within {patience_s:.0f} s{self._words()}") from None
            if event is None:
                raise Unavailable(f"{self.name} ended before version {version}{self._words()}")
            if event.get("event") == "version" and event.get("version") == version:
                return event

    def _words(self) -> str:
        self._log.seek(0)
        words = self._log.read()[-2000:].decode(errors="replace").strip()
        return f":\n{words}" if words else ""

    def stop(self) -> None:
        """Lets the process finish what it does; kills it if it does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()


class Followers:
    """Some followers of one run; a context manager that leaves no process behind."""

    def __init__(self, count: int, arguments: Sequence[str], home: Path, images: Path) -> None:
        self._make = [(f"subscriber-{number}", arguments, home, images) for number in range(1, count + 1)]
        self.all: list[Follower] = []

    def __enter__(self) -> Self:
        try:
            for made in self._make:
                self.all.append(Follower(*made))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops all of them."""
        for follower in self.all:
            follower.stop()


def _environment() -> dict[str, str]:
    """Ours, with this very package on the path: the demo also runs from a source tree."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
