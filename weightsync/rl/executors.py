"""Where the parts of a loop run: processes of this machine, or whatever else keeps a command alive.

with Processes(logs) as executor:
    executor.start("worker-1", [sys.executable, "-m", "weightsync", "rl", "work", ...])
    executor.tend()          # often: what died is started again
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from weightsync.clock import SYSTEM, Clock

STOP_S = 10.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0  # between a death and the next start
STEADY_S = 20.0  # who lived so long is started at once


class Executor(Protocol):
    """Keeps named parts running."""

    def start(self, name: str, command: Sequence[str], *, once: bool = False) -> None:
        """Runs it, again and again until it ends well (exit 0); with `once` one time only."""
        ...

    def tend(self) -> None:
        """Starts again what died."""
        ...

    def running(self, name: str) -> bool:
        """Whether it has still to do."""
        ...

    def stop(self) -> None:
        """Ends all of them, in order."""
        ...


@dataclass
class _Part:
    command: Sequence[str]
    once: bool
    log: IO[bytes]
    process: "subprocess.Popen[bytes]"
    started_s: float
    pause_s: float = FIRST_PAUSE_S
    again_s: float = 0.0
    done: bool = False
    starts: int = 1


class Processes:
    """Processes of this machine, each in a session of its own; what they say goes to `logs`/NAME.log. A context manager."""

    def __init__(self, logs: Path, *, environment: Mapping[str, str] | None = None, clock: Clock = SYSTEM) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self._logs, self._clock = logs, clock
        package = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        self._environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **(environment or {})}
        self._parts: dict[str, _Part] = {}

    def start(self, name: str, command: Sequence[str], *, once: bool = False) -> None:
        """See `Executor`."""
        log = (self._logs / f"{name}.log").open("ab")
        self._parts[name] = _Part(command, once, log, self._spawn(command, log), self._clock.monotonic_s())

    def tend(self) -> None:
        """See `Executor`."""
        now_s = self._clock.monotonic_s()
        for part in self._parts.values():
            code = part.process.poll()
            if code is None or part.done:
                continue
            if code == 0 or part.once:
                part.done = True
            elif not part.again_s:
                part.pause_s = FIRST_PAUSE_S if now_s - part.started_s > STEADY_S else part.pause_s
                part.again_s = now_s + part.pause_s
                part.pause_s = min(2 * part.pause_s, LONGEST_PAUSE_S)
            elif now_s >= part.again_s:
                part.process, part.started_s, part.again_s = self._spawn(part.command, part.log), now_s, 0.0
                part.starts += 1

    def running(self, name: str) -> bool:
        """See `Executor`."""
        return not self._parts[name].done

    def starts(self, name: str) -> int:
        """How often it was started."""
        return self._parts[name].starts

    def kill(self, name: str) -> bool:
        """As a machine that fails; whether there was something to kill."""
        process = self._parts[name].process
        if process.poll() is not None:
            return False
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return True

    def log_of(self, name: str) -> str:
        """The last of what it said."""
        return (self._logs / f"{name}.log").read_bytes()[-4000:].decode(errors="replace")

    def stop(self) -> None:
        """See `Executor`."""
        for part in reversed(self._parts.values()):
            part.done = True
            if part.process.poll() is None:
                part.process.terminate()
        for part in self._parts.values():
            try:
                part.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(part.process.pid, signal.SIGKILL)
                part.process.wait()
            part.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _spawn(self, command: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=self._environment)
