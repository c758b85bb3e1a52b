"""Forked children that are killed, or limited, or armed with failpoints."""

import os
import signal
import traceback
from collections.abc import Callable

from weightsync import failpoints


def start(work: Callable[[], None], arm: str = "") -> int:
    """The process id of a child that does `work` under failpoints `arm` and then exits: 0, or 1 after an error."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        failpoints._armed = failpoints.parse(arm)
        work()
        code = 0
    except BaseException:  # noqa: BLE001  whatever it is, the parent sees it printed and the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pid: int) -> int:
    """Its exit code, negative for a signal."""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def kill(pid: int) -> None:
    """SIGKILL, and waits for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def run(work: Callable[[], None], arm: str = "") -> int:
    """`start` and `wait`."""
    return wait(start(work, arm))
