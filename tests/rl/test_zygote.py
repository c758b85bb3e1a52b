import asyncio
import os
import signal
from pathlib import Path

import pytest

from weightsync.errors import Unavailable, Unsupported
from weightsync.rl.sandbox.api import End, Limits
from weightsync.rl.sandbox.zygote import Zygote
from weightsync.telemetry.metrics import open_board
from weightsync.telemetry.names import SANDBOXES
from weightsync.testing.sandbox_contract import SandboxContract


def _works() -> bool:
    async def start():
        async with Zygote() as backend:
            await (await backend.create()).terminate()

    try:
        asyncio.run(start())
    except (Unsupported, Unavailable):
        return False
    return True


pytestmark = pytest.mark.skipif(not _works(), reason="this machine makes no namespaces")


class TestZygote(SandboxContract):
    def backend(self, limits: Limits) -> Zygote:
        return Zygote(limits)

    def test_the_clock_is_given(self):
        code = "import time, datetime\nprint(time.time(), time.monotonic(), datetime.datetime.now(datetime.UTC).isoformat())"
        first, again = (self.result(code, now_s=1_700_000_000.0).stdout for _ in range(2))
        assert first == again
        assert first.startswith(b"1700000000.0")
        assert b"2023-11-14T22:13:20" in first

    def test_a_program_sees_an_almost_empty_machine(self):
        result = self.result("import os; print(sorted(os.listdir('/')), os.listdir('/work'), sorted(os.environ), os.getuid())")
        assert b"'etc'" not in result.stdout
        assert b"'home'" not in result.stdout
        assert b"['HOME', 'LANG', 'PATH', 'PYTHONHASHSEED'] 1000" in result.stdout

    def test_memory_beyond_the_limit_is_said_to_be_that(self):
        async def use(backend):
            await backend._ensure()
            if "memory" not in backend.bounds:
                pytest.skip("no control groups here")
            sandbox = await backend.create()
            code = "import os\nfor _ in range(8):\n    fd = os.memfd_create('x')\n    os.write(fd, bytes(15 << 20))\nprint('all')"
            return await sandbox.exec(["python", "-c", code])

        result = self.within(use, Limits(memory_bytes=64 << 20))
        assert result.end is End.MEMORY
        assert result.stdout == b""


def run(coroutine):
    return asyncio.run(coroutine)


def children():
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_nothing_is_left_behind():
    before = children()

    async def use():
        async with Zygote() as backend:
            await backend.create()
            await (await backend.create()).snapshot()
            return backend._process.pid

    warm = run(use())
    assert children() == before
    assert not Path(f"/proc/{warm}").exists()
    assert not list(Path("/sys/fs/cgroup").rglob(f"weightsync-{os.getpid()}-*"))


def test_a_sandbox_that_dies_is_unavailable_and_the_next_one_works():
    async def use():
        async with Zygote() as backend:
            sandbox = await backend.create()
            running = asyncio.create_task(sandbox.exec(["python", "-c", "import time; time.sleep(60)"], wall_s=60.0))
            await asyncio.sleep(0.2)
            signal.pidfd_send_signal(sandbox._process, signal.SIGKILL)
            with pytest.raises(Unavailable, match="broke down"):
                await running
            return (await (await backend.create()).exec(["python", "-c", "print(1)"])).stdout

    assert run(use()) == b"1\n"


def test_the_warm_process_is_started_again_when_it_dies():
    async def use():
        async with Zygote() as backend:
            backend._process.kill()
            backend._process.wait()
            return (await (await backend.create()).exec(["python", "-c", "print(1)"])).stdout

    assert run(use()) == b"1\n"


def test_cancelling_a_command_ends_its_sandbox():
    async def use():
        async with Zygote(at_once=1) as backend:
            sandbox = await backend.create()
            running = asyncio.create_task(sandbox.exec(["python", "-c", "import time; time.sleep(60)"], wall_s=60.0))
            await asyncio.sleep(0.1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return (await (await backend.create()).exec(["python", "-c", "print(1)"])).stdout  # its turn is free again

    assert run(use()) == b"1\n"


def test_starts_are_measured():
    board = open_board(SANDBOXES)

    async def use():
        async with Zygote(board=board) as backend:
            for _ in range(3):
                await (await backend.create()).terminate()
            return list(backend.start_s)

    assert len(run(use())) == 3
    assert b"weightsync_sandbox_start_seconds_count 3.0" in board.render()


def test_closing_ends_commands_that_run_and_their_callers_hear_of_it():
    async def use():
        backend = Zygote()
        sandboxes = [await backend.create() for _ in range(4)]
        running = [asyncio.create_task(one.exec(["python", "-c", "import time; time.sleep(60)"], wall_s=60.0)) for one in sandboxes]
        await asyncio.sleep(0.1)
        await backend.close()
        found = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 10)
        again = await backend.create()
        result = await again.exec(["python", "-c", "print(1)"])
        await backend.close()
        return found, result.stdout

    found, said = run(use())
    assert {type(one) for one in found} == {Unavailable}
    assert said == b"1\n"


def test_a_warm_process_that_is_killed_leaves_bounds_that_its_successor_uses():
    async def use():
        async with Zygote() as backend:
            bounds, held = backend.bounds, await backend.create()
            for _ in range(3):
                backend._process.kill()
                backend._process.wait()
                await (await backend.create()).terminate()
                assert backend.bounds == bounds
            assert (await held.exec(["python", "-c", "print(1)"])).ok  # it does not need the warm process
            await held.terminate()

    run(use())
