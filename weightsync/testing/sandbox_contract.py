"""What every backend of sandboxes must pass. Most of the programs in it are hostile.

Subclass it and give `backend`:

    class TestMine(SandboxContract):
        def backend(self, limits: Limits) -> Sandboxes: ...
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from weightsync.errors import Invalid, WeightsyncError
from weightsync.rl.sandbox.api import MIB, End, Limits, Result, Sandbox, Sandboxes

THREADS = """
import atexit, threading, time
atexit.register(print, "b")
threading.Thread(target=lambda: (time.sleep(.1), print("a"))).start()
"""
LIMITS = Limits(memory_bytes=192 * MIB, processes=24, disk_bytes=16 * MIB, files=512, cpu_s=5, wall_s=5.0, output_bytes=64 << 10)
FORKS = """
import os, time
made = 0
try:
    while made < 100_000:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""
FILL_MEMORY = """
import os
parts = []
for _ in range(8):
    if os.fork() == 0:
        for _ in range(64):
            parts.append(bytearray(b"x") * (8 << 20))
        break
else:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    print("survived")
"""
FILL_DISK = """
written = 0
try:
    for number in range(64):
        with open(f"f{number}", "wb") as file:
            for _ in range(64):
                written += file.write(bytes(1 << 20))
                file.flush()
except OSError as error:
    print(type(error).__name__)
print(written >> 20)
"""
SIGNALS = """
import os, signal
for process in [-1, 1, *map(int, filter(str.isdigit, os.listdir("/proc")))]:
    if process != os.getpid():
        try:
            os.kill(process, signal.SIGKILL)
        except OSError:
            pass
print("done")
"""


class SandboxContract:
    """Runs real programs in real sandboxes."""

    def backend(self, limits: Limits) -> Sandboxes:
        """A backend whose sandboxes have `limits`."""
        raise NotImplementedError

    def within(self, use: Callable[[Sandboxes], Awaitable[Any]], limits: Limits = LIMITS) -> Any:
        """What `use` gives, with a backend of its own."""

        async def run() -> Any:
            backend = self.backend(limits)
            try:
                return await use(backend)
            finally:
                await backend.close()

        return asyncio.run(run())

    def result(self, code: str, limits: Limits = LIMITS, **named: Any) -> Result:
        """How the Python program `code` ends, and that the sandbox does as it is told afterwards."""

        async def use(backend: Sandboxes) -> Result:
            sandbox = await backend.create(files={"main.py": code.encode()})
            result = await sandbox.exec(["python", "main.py"], **named)
            after = await sandbox.exec(["python", "-c", "print('still here')"])
            assert after.stdout == b"still here\n", after
            await sandbox.terminate()
            return result

        found = self.within(use, limits)
        assert isinstance(found, Result)
        return found

    # -------------------------------------------------------------------------------------------------- what it offers

    def test_programs_run(self) -> None:
        """Output, errors, input, arguments, status."""
        result = self.result("import sys; print(sys.stdin.read()); sys.stderr.write('e'); sys.exit(3)", stdin=b"in")
        assert result[:4] == (End.EXITED, 3, b"in\n", b"e")
        assert not result.ok
        assert self.result("print(1)").ok
        assert self.result("assert False").stderr.startswith(b"Traceback")
        assert self.result("raise SystemExit('no')")[1:4] == (1, b"", b"no\n")

    def test_threads_and_exit_functions_are_waited_for(self) -> None:
        """As at the end of any program."""
        assert self.result(THREADS).stdout == b"a\nb\n"

    def test_other_programs_run(self) -> None:
        """From the machine, read-only; one that is not there says so."""

        async def use(backend: Sandboxes) -> tuple[Result, Result]:
            sandbox = await backend.create()
            return await sandbox.exec(["sh", "-c", "echo $((6 * 7)); kill -9 $$"]), await sandbox.exec(["no-such-program"])

        shell, missing = self.within(use)
        assert shell[:3] == (End.SIGNALLED, 9, b"42\n")
        assert missing.end is End.EXITED
        assert missing.code == 127

    def test_files_stay_and_come_back(self) -> None:
        """A snapshot is canonical; what is made of it is alike and apart."""

        async def use(backend: Sandboxes) -> None:
            first = await backend.create(files={"a/b.txt": b"one", "c": b"\0\xff"})
            await first.exec(["sh", "-c", "echo two > d; mkdir e; chmod 700 d; ln -s d f; chmod 000 c"])
            state = await first.snapshot()
            await first.terminate()
            second, third = await backend.create(state), await backend.create(state, files={"c": b"new"})
            assert (await second.snapshot()).digest == state.digest
            await second.exec(["sh", "-c", "rm -r a; echo three > d"])
            assert (await third.exec(["sh", "-c", "cat a/b.txt d f c"])).stdout == b"onetwo\ntwo\nnew"
            assert (await second.exec(["sh", "-c", "ls; cat f"])).stdout.split() == [b"c", b"d", b"e", b"f", b"three"]
            for sandbox in (second, third):
                await sandbox.terminate()

        self.within(use)

    def test_the_same_seed_and_clock_give_the_same_bytes(self) -> None:
        """Randomness and hashes of a program are given; other seeds give others."""
        code = "import random, os; print(random.random(), os.urandom(4).hex(), hash('x'))"
        first, again, other = (self.result(code, seed=seed).stdout for seed in (1, 1, 2))
        assert first == again != other

    def test_terminating_twice_is_fine_and_ends_it(self) -> None:
        """And nothing runs in it any more."""

        async def use(backend: Sandboxes) -> None:
            sandbox = await backend.create()
            await sandbox.terminate()
            await sandbox.terminate()
            try:
                await sandbox.exec(["python", "-c", "1"])
            except WeightsyncError:
                return
            raise AssertionError("a terminated sandbox ran a command")

        self.within(use)

    def test_paths_that_lead_out_are_refused(self) -> None:
        """Before anything is written."""

        async def use(backend: Sandboxes) -> None:
            sandbox = await backend.create()
            for name in ("../x", "/x", "", "a/../../x", "a\0b", "x" * 5000):
                try:
                    await sandbox.put({name: b"1"})
                except Invalid:
                    continue
                raise AssertionError(f"{name!r} was taken")

        self.within(use)

    def test_many_at_once(self) -> None:
        """All of them, each with its own files."""

        async def one(backend: Sandboxes, number: int) -> bytes:
            sandbox: Sandbox = await backend.create(files={"n": str(number).encode()})
            result = await sandbox.exec(["python", "-c", "print(int(open('n').read()) ** 2)"])
            await sandbox.terminate()
            return result.stdout

        async def use(backend: Sandboxes) -> list[bytes]:
            return await asyncio.gather(*(one(backend, number) for number in range(40)))

        assert self.within(use) == [b"%d\n" % number**2 for number in range(40)]

    # ------------------------------------------------------------------------------------------------- what it prevents

    def test_a_fork_bomb_ends_at_the_limit(self) -> None:
        """And its processes end with the command."""
        result = self.result(FORKS)
        assert 1 < int(result.stdout) < LIMITS.processes

    def test_memory_of_all_processes_together_is_bounded(self) -> None:
        """4 GiB are asked for, by eight processes."""
        before = _free_bytes()
        result = self.result(FILL_MEMORY)
        assert result.end in {End.EXITED, End.MEMORY, End.SIGNALLED}
        assert _free_bytes() > before - (1 << 30)

    def test_one_process_cannot_have_all_memory(self) -> None:
        """It hears of it, or is killed."""
        result = self.result("x = bytearray(1 << 40)")
        assert not result.ok

    def test_the_disk_is_bounded(self) -> None:
        """By an error that the program hears."""
        lines = self.result(FILL_DISK).stdout.split()
        assert lines[0] == b"OSError"
        assert int(lines[1]) <= LIMITS.disk_bytes >> 20

    def test_the_number_of_files_is_bounded(self) -> None:
        """Or their size is; a million empty ones are not to be had."""
        result = self.result("for n in range(1_000_000): open(f'f{n}', 'w')")
        assert not result.ok

    def test_loops_end_by_their_time(self) -> None:
        """Those that sleep, those that compute, and those that ignore signals."""
        quick = Limits(memory_bytes=LIMITS.memory_bytes, cpu_s=1, wall_s=1.5)
        assert self.result("while True: pass", quick).end is End.TIME
        assert self.result("import time; time.sleep(60)", quick).end is End.TIME
        stubborn = (
            "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\nwhile True: pass"
        )
        assert self.result(stubborn, quick).end in {End.TIME, End.SIGNALLED}

    def test_output_is_bounded(self) -> None:
        """Its first bytes are kept."""
        result = self.result("import sys\nfor _ in range(100): sys.stdout.write('x' * 100_000)")
        assert result.cut
        assert result.stdout == b"x" * LIMITS.output_bytes

    def test_there_is_no_network(self) -> None:
        """Not even this machine's own."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)\nprint('connected')"
            result = self.result(code)
        assert b"connected" not in result.stdout
        assert b"Error" in result.stderr

    def test_the_hosts_files_are_out_of_reach(self, tmp_path: Path) -> None:
        """To read and to write; those of its programs are not to be changed."""
        secret = tmp_path / "secret"
        secret.write_text("seen")
        secret.chmod(0o666)
        for path in (str(secret), "/etc/shadow", "/proc/1/environ", "/proc/1/mem", "/proc/kcore"):
            result = self.result(f"print(open({path!r}, 'rb').read(16))\nprint('seen')")
            assert b"seen" not in result.stdout, path
        for path in (str(secret), "/usr/bin/weightsync-was-here", "/etc/passwd", "/bin/sh"):
            assert not self.result(f"open({path!r}, 'wb').write(b'x')").ok, path
        assert secret.read_text() == "seen"

    def test_signals_reach_nobody_outside(self) -> None:
        """The sandbox itself takes orders afterwards."""
        assert self.result(SIGNALS).stdout == b"done\n"

    def test_what_a_command_leaves_running_ends_with_it(self) -> None:
        """Nothing writes after it is over."""

        async def use(backend: Sandboxes) -> bytes:
            sandbox = await backend.create()
            code = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(.5)\n    open('late', 'w')\n"
            await sandbox.exec(["python", "-c", code])
            return (await sandbox.exec(["sh", "-c", "sleep 1; ls"])).stdout

        assert self.within(use) == b""

    def test_privileges_do_not_come_back(self) -> None:
        """Neither by a user namespace nor by mounting nor by becoming another."""
        code = (
            "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
            "print(libc.unshare(0x10000000) == 0, libc.mount(b'none', b'/work', b'tmpfs', 0, None) == 0)\n"
            "for change in (os.setuid, os.setgid):\n    try: change(0); print(True)\n    except OSError: print(False)\n"
        )
        assert b"True" not in self.result(code).stdout

    def test_a_snapshot_of_too_much_is_refused(self) -> None:
        """Files with nothing in them and a great length cost nobody memory."""

        async def use(backend: Sandboxes) -> None:
            sandbox = await backend.create()
            await sandbox.exec(["python", "-c", "for n in range(9): open(f'f{n}', 'wb').truncate(15 << 20)"])
            try:
                await sandbox.snapshot()
            except Invalid:
                return
            raise AssertionError("135 MiB came out of a sandbox that may hold 16")

        self.within(use)


def _free_bytes() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) << 10
