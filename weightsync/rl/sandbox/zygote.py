"""Sandboxes forked from a warm interpreter: namespaces, no network, control groups, an overlay over a snapshot; a few milliseconds each.

    async with Zygote() as sandboxes:
        sandbox = await sandboxes.create()

Linux only. Needs root, or a kernel that gives users namespaces of their own. Without control groups (`bounds` says which there are)
memory and processes are bounded for each process and user namespace alone.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import Corrupt, Invalid, Unavailable, Unsupported
from weightsync.rl.sandbox.api import End, Limits, Result, Sandbox, Snapshot
from weightsync.rl.sandbox.archive import pack, unpack
from weightsync.rl.sandbox.inside import NOBODY, STARTED
from weightsync.rl.sandbox.nursery import READY
from weightsync.rl.sandbox.wire import HEAD, Fields, fields_of, frame, lengths
from weightsync.telemetry.metrics import Board, NoBoard
from weightsync.telemetry.names import SANDBOX_START_S

if TYPE_CHECKING:
    from weightsync.rl.sandbox.api import Sandboxes

SYSTEM_DIRECTORIES = ("/usr", "/bin", "/lib", "/lib64")
START = "import sys; sys.path.insert(0, {root!r}); from weightsync.rl.sandbox import nursery; sys.path.pop(0); nursery.main()"
START_S = 30.0
GRACE_S = 10.0  # for a sandbox to answer beyond a command's own limit
KEPT_STARTS = 10_000


def read_only_directories() -> tuple[str, ...]:
    """The machine's programs and this interpreter's library, as sandboxes see them."""
    found = [path for path in SYSTEM_DIRECTORIES if Path(path).exists()]
    library = Path(os.__file__).parent
    if not library.is_relative_to("/usr"):
        found.append(str(library))
    return tuple(found)


class Zygote:
    """A backend of sandboxes. `start_s`: how long the last starts took, in seconds; `bounds`: what control groups hold."""

    def __init__(self, limits: Limits | None = None, *, at_once: int = 0, clock: Clock = SYSTEM, board: Board | None = None) -> None:
        self.limits = limits or Limits()
        self.start_s: deque[float] = deque(maxlen=KEPT_STARTS)
        self.bounds: tuple[str, ...] = ()
        self._clock, self._board = clock, board or NoBoard()
        self._turns = asyncio.Semaphore(at_once or 4 * (os.cpu_count() or 1))
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._tree: tempfile.TemporaryDirectory[str] | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._bases: dict[str, Path] = {}
        self._open: set[ZygoteSandbox] = set()

    async def __aenter__(self) -> Self:
        await self._ensure()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create(self, state: Snapshot | None = None, files: Mapping[str, bytes] | None = None) -> Sandbox:
        """A new sandbox. Raises `Unavailable` where it could not be started, `Unsupported` where this machine cannot."""
        archive = pack(files) if files else b""
        await self._turns.acquire()
        started_s = self._clock.monotonic_s()
        try:
            sandbox = ZygoteSandbox(await self._ask(state), self)
        except BaseException:
            self._turns.release()
            raise
        self._open.add(sandbox)
        try:
            await sandbox.started()
            self.start_s.append(self._clock.monotonic_s() - started_s)
            self._board.observe(SANDBOX_START_S, self.start_s[-1])
            if archive:
                await sandbox.put_archive(archive)
        except BaseException:
            await sandbox.terminate()
            raise
        return sandbox

    async def close(self) -> None:
        """Ends all sandboxes and the warm process."""
        for sandbox in tuple(self._open):
            await sandbox.terminate()
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
        for place in (self._place, self._tree):
            if place is not None:
                place.cleanup()
        self._process = self._connection = self._place = self._tree = None
        self._bases.clear()

    def ended(self, sandbox: "ZygoteSandbox") -> None:
        """`sandbox` has ended: another may start."""
        if sandbox in self._open:
            self._open.remove(sandbox)
            self._turns.release()

    async def _ask(self, state: Snapshot | None) -> socket.socket:
        """Has a sandbox forked; gives the host's end of its connection."""
        warm = await self._ensure()
        base = self._base(state) if state else None
        ask = {"limits": {name: getattr(self.limits, name) for name in LIMITS}, "base": str(base) if base else None}
        host, inside = socket.socketpair()
        with inside:
            host.setblocking(False)
            try:
                await _send_with(warm, json.dumps(ask).encode(), inside.fileno())
            except OSError as error:
                host.close()
                raise Unavailable(f"the process that sandboxes are forked from is gone: {error}") from error
        return host

    async def _ensure(self) -> socket.socket:
        """The connection to the warm process; starts one where there is none, or where it has ended."""
        async with self._starting:
            if self._process is not None and self._process.poll() is not None and self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = await self._start()
            return self._connection

    async def _start(self) -> socket.socket:
        host, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with inside:
            code = START.format(root=str(Path(__file__).parents[3]))
            prefix = f"weightsync-{os.getpid()}-{inside.fileno()}"
            if self._tree is None:
                self._tree = tempfile.TemporaryDirectory(prefix="weightsync-sandboxes-")
                Path(self._tree.name).chmod(0o755)
            given = [str(inside.fileno()), prefix, self._tree.name, *read_only_directories()]
            command = [sys.executable, "-S", "-s", "-P", "-c", code, *given]
            environment = {"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
            self._process = subprocess.Popen(command, pass_fds=[inside.fileno()], env=environment, stdin=subprocess.DEVNULL, cwd="/")
        host.setblocking(False)
        try:
            async with asyncio.timeout(START_S):
                said = await asyncio.get_running_loop().sock_recv(host, 1 << 16)
        except BaseException as error:
            host.close()
            if isinstance(error, TimeoutError):
                raise Unavailable("the process that sandboxes are forked from does not start") from error
            raise
        if not said.startswith(READY):
            host.close()
            why = json.loads(said)["error"] if said else "it ended"
            raise Unsupported(
                f"this machine makes no sandboxes: {why}",
                remedy="they need Linux, and root or kernel.unprivileged_userns_clone=1",
            )
        self.bounds = tuple(json.loads(said[len(READY) :])["bounds"])
        return host

    def _base(self, state: Snapshot) -> Path:
        """A directory with the files of `state`, which any number of sandboxes lie over."""
        if self._place is None:
            self._place = tempfile.TemporaryDirectory(prefix="weightsync-states-")
            Path(self._place.name).chmod(0o711)
        if state.digest not in self._bases:
            base = Path(self._place.name) / state.digest
            owner = NOBODY if os.geteuid() == 0 else None
            base.mkdir(0o755)
            if owner is not None:
                os.chown(base, owner, owner)
            unpack(state.data, base, self.limits.disk_bytes, owner)
            self._bases[state.digest] = base
        return self._bases[state.digest]


LIMITS = ("memory_bytes", "processes", "disk_bytes", "files", "cpu_s", "output_bytes")


class ZygoteSandbox:
    """One of them; see `weightsync.rl.sandbox.api.Sandbox`."""

    def __init__(self, connection: socket.socket, backend: Zygote) -> None:
        self._connection, self._backend = connection, backend
        self._process: int | None = None
        self._one = asyncio.Lock()
        self._waiting = self._over = False

    async def started(self) -> None:
        """Waits until process 1 takes orders."""
        self._waiting = True
        try:
            async with asyncio.timeout(START_S):
                await _readable(self._connection)
                first, descriptors, _, _ = socket.recv_fds(self._connection, 1, 1)
                self._process = descriptors[0] if descriptors else None
                fields, _ = await self._receive()
        except (TimeoutError, OSError, EOFError, Corrupt) as error:
            raise Unavailable(f"a sandbox did not start: {str(error) or type(error).__name__}") from error
        finally:
            self._waited()
        if first != STARTED or "error" in fields:
            raise Unavailable(f"a sandbox did not start: {fields.get('error')}")

    async def exec(
        self,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        wall_s: float | None = None,
        seed: int = 0,
        now_s: float | None = None,
    ) -> Result:
        """Runs a command. Raises `Unavailable` where the sandbox did not do it."""
        if not command:
            raise Invalid("a command has no program")
        limits = self._backend.limits
        wall_s = limits.wall_s if wall_s is None else wall_s
        order: Fields = {"do": "exec", "command": list(command), "wall_s": wall_s, "seed": seed, "now_s": now_s}
        fields, body = await self._order(order, stdin, wall_s)
        return _result(fields, body)

    async def put(self, files: Mapping[str, bytes]) -> None:
        """Writes files under `WORK`."""
        await self.put_archive(pack(files))

    async def put_archive(self, archive: bytes) -> None:
        """Writes the files of an archive."""
        await self._order({"do": "put"}, archive)

    async def snapshot(self) -> Snapshot:
        """The files as they are."""
        _, body = await self._order({"do": "snapshot"})
        return Snapshot(body)

    async def terminate(self) -> None:
        """Kills process 1, and so all of it; returns when it is gone."""
        self._over = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer hears of it
        if not self._waiting:
            self._connection.close()
        watched, self._process = self._process, None
        try:
            if watched is not None:
                signal.pidfd_send_signal(watched, signal.SIGKILL)
                async with asyncio.timeout(GRACE_S):
                    await _readable(watched)
        except (ProcessLookupError, TimeoutError):
            pass  # it is dead, or the kernel will get to it
        finally:
            if watched is not None:
                os.close(watched)
            self._backend.ended(self)

    async def _order(self, order: Fields, body: bytes = b"", wall_s: float = 0.0) -> tuple[Fields, bytes]:
        loop = asyncio.get_running_loop()
        async with self._one:
            self._waiting = True
            try:
                async with asyncio.timeout(wall_s + GRACE_S):
                    await loop.sock_sendall(self._connection, frame(order, body))
                    fields, answer = await self._receive()
            except (TimeoutError, OSError, EOFError, Corrupt) as error:
                await self.terminate()
                raise Unavailable(f"a sandbox broke down: {str(error) or type(error).__name__}", remedy="try again in a new one") from error
            except asyncio.CancelledError:
                await self.terminate()
                raise
            finally:
                self._waited()
        if "invalid" in fields:
            raise Invalid(f"a sandbox refused: {fields['invalid']}")
        if "failed" in fields or "error" in fields:
            raise Unavailable(f"a sandbox failed: {fields.get('failed') or fields.get('error')}")
        return fields, answer

    def _waited(self) -> None:
        """Nobody waits on the connection any more: only now may its descriptor become another one's."""
        self._waiting = False
        if self._over:
            self._connection.close()

    async def _receive(self) -> tuple[Fields, bytes]:
        text, body = lengths(await self._exactly(HEAD.size))
        return fields_of(await self._exactly(text)), await self._exactly(body)

    async def _exactly(self, count: int) -> bytes:
        buffer = bytearray(count)
        view, loop = memoryview(buffer), asyncio.get_running_loop()
        while view:
            read = await loop.sock_recv_into(self._connection, view)
            if not read:
                raise EOFError("it ended")
            view = view[read:]
        return bytes(buffer)


def _result(fields: Fields, body: bytes) -> Result:
    try:
        out = int(fields["out"])
        return Result(End(fields["end"]), int(fields["code"]), body[:out], body[out:], bool(fields["cut"]), float(fields["seconds"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"a sandbox answered what is no result: {error}") from error


async def _send_with(connection: socket.socket, data: bytes, descriptor: int) -> None:
    """One packet with a descriptor; waits while the queue is full."""
    while True:
        try:
            socket.send_fds(connection, [data], [descriptor])
            return
        except BlockingIOError:
            await asyncio.sleep(0.001)


async def _readable(descriptor: Any) -> None:
    """Waits until there is something to read on a socket, or until the process of a descriptor has ended."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def now() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, now)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


if TYPE_CHECKING:
    _conforms: type[Sandboxes] = Zygote
