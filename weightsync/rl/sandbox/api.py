"""What a backend of sandboxes offers; remote services fit behind it too.

    async with Zygote() as sandboxes:
        sandbox = await sandboxes.create(files={"main.py": b"print(open('x').read())", "x": b"1"})
        result = await sandbox.exec(["python", "main.py"])
        state = await sandbox.snapshot()
        await sandbox.terminate()
        again = await sandboxes.create(state)      # restores it: the same files, byte for byte

Whatever goes wrong with the place itself is `Unavailable`: never the program's fault, and safe to try again in a new one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from blake3 import blake3

MIB = 1 << 20
WORK = "/work"  # where a program starts, and all that a snapshot holds


@dataclass(frozen=True)
class Limits:
    """What a sandbox may use. `memory_bytes`, `processes`, `disk_bytes`: all its processes together. `cpu_s`: each one of them.

    `output_bytes`: kept of standard output and of standard error each; the rest is dropped. `wall_s`: each command.
    """

    memory_bytes: int = 256 * MIB
    processes: int = 32
    disk_bytes: int = 64 * MIB
    files: int = 4096
    cpu_s: int = 10
    wall_s: float = 10.0
    output_bytes: int = MIB


class End(StrEnum):
    """How a command ended: by itself, by a signal, by the limit of its time, by the limit of memory."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIME = "time"
    MEMORY = "memory"


class Result(NamedTuple):
    """`code`: the exit status, or the signal's number. `cut`: there was more output than is kept."""

    end: End
    code: int
    stdout: bytes
    stderr: bytes
    cut: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.end is End.EXITED and self.code == 0


class Snapshot(NamedTuple):
    """All files under `WORK` as one canonical archive: the same files are the same bytes."""

    data: bytes

    @property
    def digest(self) -> str:
        """BLAKE3 of the archive, hexadecimal."""
        return blake3(self.data).hexdigest()


class Sandbox(Protocol):
    """One place. Commands run one after another; what a command leaves running ends with it, what it writes stays."""

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        wall_s: float | None = None,
        seed: int = 0,
        now_s: float | None = None,
    ) -> Result:
        """Runs a program in `WORK`. The program `python` is always there; whether other programs find one is the machine's matter.

        Python programs draw the same random numbers for the same `seed`, and with `now_s` read the same times.
        """
        ...

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Writes files under `WORK`; directories are made as needed."""
        ...

    async def snapshot(self) -> Snapshot:
        """The files as they are. Raises `Invalid` where there are more than an archive may hold."""
        ...

    async def terminate(self) -> None:
        """Ends it with all that runs in it; what is in it is gone. May be called again."""
        ...


class Sandboxes(Protocol):
    """A running backend."""

    async def create(self, state: Snapshot | None = None, files: Mapping[str, bytes] | None = None) -> Sandbox:
        """A new one, empty or with the files of `state`, and `files` over them. Waits while as many run as may."""
        ...

    async def close(self) -> None:
        """Ends all of them."""
        ...
