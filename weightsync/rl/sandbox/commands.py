"""Runs one command inside a sandbox, within its limits, and collects what it says. Only the standard library; called by process 1."""

import os
import resource
import selectors
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

from weightsync.clock import SYSTEM
from weightsync.rl.sandbox.cgroups import kills
from weightsync.rl.sandbox.linux import set_dumpable
from weightsync.rl.sandbox.python import run_python

PIECE = 1 << 16
MAX_DESCRIPTORS = 256
PATH = "/usr/local/bin:/usr/bin:/bin"
NOT_FOUND, NOT_STARTED = 127, 126


class Order(NamedTuple):
    """A command and its limits."""

    command: Sequence[str]
    stdin: bytes
    wall_s: float
    cpu_s: int
    memory_bytes: int
    processes: int
    disk_bytes: int
    output_bytes: int
    seed: int
    now_s: float | None


class Gone(Exception):
    """Nobody waits for this sandbox any more."""


def run(order: Order, host: socket.socket, kills_file: int | None) -> tuple[dict[str, Any], bytes]:
    """The fields of a result, and standard output and standard error as one. Raises `Gone`."""
    started_s, killed_before = SYSTEM.monotonic_s(), kills(kills_file) if kills_file is not None else 0
    stdin = os.memfd_create("stdin")
    os.write(stdin, order.stdin)
    os.lseek(stdin, 0, os.SEEK_SET)
    out, err = os.pipe(), os.pipe()
    process = os.fork()
    if process == 0:
        _become(order, (stdin, out[1], err[1]))
    for descriptor in (stdin, out[1], err[1]):
        os.close(descriptor)
    with Drain(host, {out[0]: order.output_bytes, err[0]: order.output_bytes}) as drain:
        in_time = drain.until_end(process, started_s + order.wall_s)
        status = _end_all(process)
        drain.rest()
    seconds = SYSTEM.monotonic_s() - started_s
    end, code = _ended(status, in_time)
    if end == "signalled" and kills_file is not None and kills(kills_file) > killed_before:
        end = "memory"
    kept = [bytes(drain.kept[descriptor]) for descriptor in (out[0], err[0])]
    return {"end": end, "code": code, "out": len(kept[0]), "cut": drain.cut, "seconds": seconds}, b"".join(kept)


def _ended(status: int, in_time: bool) -> tuple[str, int]:
    if os.WIFEXITED(status) and in_time:
        return "exited", os.WEXITSTATUS(status)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return ("time" if not in_time or number == signal.SIGXCPU else "signalled"), number


class Drain:
    """Reads what a command says, keeps the first of it, and watches for its end and for the host's."""

    def __init__(self, host: socket.socket, room: dict[int, int]) -> None:
        self.kept = {descriptor: bytearray() for descriptor in room}
        self.cut = False
        self._room, self._host = room, host
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Self:
        for descriptor in self._room:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(self._host, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        self._selector.close()
        for descriptor in self._room:
            os.close(descriptor)

    def until_end(self, process: int, deadline_s: float) -> bool:
        """Reads until `process` ends; False when the deadline comes first."""
        watched = os.pidfd_open(process)
        self._selector.register(watched, selectors.EVENT_READ)
        try:
            while (left_s := deadline_s - SYSTEM.monotonic_s()) > 0:
                ready = {key.fd for key, _ in self._selector.select(left_s)}
                if self._host.fileno() in ready:
                    raise Gone  # hosts say nothing while a command runs: this is their end
                for descriptor in ready & self._room.keys():
                    self._read(descriptor)
                if watched in ready:
                    return True
            return False
        finally:
            self._selector.unregister(watched)
            os.close(watched)

    def rest(self) -> None:
        """What is left in the pipes; nobody writes to them any more."""
        for descriptor in self._room:
            while self._read(descriptor):
                pass

    def _read(self, descriptor: int) -> bool:
        try:
            piece = os.read(descriptor, PIECE)
        except BlockingIOError:
            return False
        if not piece:
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
            return False
        kept = self.kept[descriptor]
        room = self._room[descriptor] - len(kept)
        self.cut = self.cut or len(piece) > room
        kept += piece[:room]
        return True


def _end_all(process: int) -> int:
    """Kills whatever runs in here but process 1, and gives the wait status of `process`."""
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    status = 0
    while True:
        try:
            found, its = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if found == process:
            status = its


def _become(order: Order, streams: Sequence[int]) -> NoReturn:
    """In the new process: limits, streams, and the command."""
    status = NOT_STARTED
    try:
        os.setsid()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.closerange(3, 1 << 20)
        set_dumpable(True)
        Path("/proc/self/oom_score_adj").write_text("1000")  # before process 1
        _limit(order)
        os.environ.clear()
        os.environ.update({"PATH": PATH, "HOME": "/work", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"})
        program, *arguments = order.command
        if program == "python":
            status = run_python(arguments, order.seed, order.now_s)
        else:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.execvpe(program, [program, *arguments], os.environ)  # noqa: S606  no shell
    except (FileNotFoundError, NotADirectoryError) as error:
        os.write(2, f"{error}\n".encode())
        status = NOT_FOUND
    except BaseException as error:  # noqa: BLE001  nothing may return into process 1's code
        os.write(2, f"{error}\n".encode())
    finally:
        os._exit(status)


def _limit(order: Order) -> None:
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, order.cpu_s, order.cpu_s + 1),
        (resource.RLIMIT_AS, order.memory_bytes, order.memory_bytes),
        (resource.RLIMIT_FSIZE, order.disk_bytes, order.disk_bytes),
        (resource.RLIMIT_NPROC, order.processes, order.processes),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS, MAX_DESCRIPTORS),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        resource.setrlimit(kind, (soft, hard))
