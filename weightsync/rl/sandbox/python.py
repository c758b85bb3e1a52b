"""Runs a Python program in this very interpreter, which is warm, as if it had just been started. Only the standard library.

The program's process is a fork that does nothing else and ends afterwards. `random`, hashes and, with `now_s`, the clock give the same
values each time. What a program finds out in other ways about the moment it runs in, as from /proc, is not covered.
"""

import atexit
import datetime as dt
import itertools
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import SupportsIndex

TICK_NS = 1000  # how far a frozen clock moves on at each look


def run_python(arguments: Sequence[str], seed: int, now_s: float | None) -> int:
    """`python ARGUMENTS`: a file, `-c` and code, or `-` for standard input. Gives the exit status."""
    sys.modules["random"].seed(seed)
    _same_bytes(seed)
    if now_s is not None:
        _freeze(round(now_s * 1e9))
    try:
        status = _main(arguments)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for its threads, as the end of a program does
        atexit._run_exitfuncs()
    except BaseException:  # noqa: BLE001  a program's own end, whatever it is
        status = 1
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120  # as Python itself answers
    return status


def _main(arguments: Sequence[str]) -> int:
    name, given = (arguments[0], arguments[1:]) if arguments else ("-", ())
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    try:
        if name == "-c":
            source, shown, given = given[0] if given else "", "<string>", given[1:]
        elif name == "-":
            source, shown = sys.stdin.read(), "<stdin>"
        else:
            source, shown = Path(name).read_text(encoding="utf-8"), name
            module.__file__ = name
        sys.argv = [name, *given]
        sys.path.insert(0, str(Path(name).resolve().parent) if name not in {"-", "-c"} else "")
        exec(compile(source, shown, "exec"), module.__dict__)  # noqa: S102  the purpose of a sandbox
    except SystemExit as leaving:
        return _status(leaving.code)
    except BaseException as error:  # noqa: BLE001  a program's own end, whatever it is
        mine = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(type(error), error, mine)
        return 1
    return 0


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _same_bytes(seed: int) -> None:
    """`os.urandom` and what is built on it; not for secrets, and nothing in a sandbox is one."""
    draw = sys.modules["random"].Random(seed).randbytes

    def urandom(size: int, /) -> bytes:
        return bytes(draw(size))

    os.urandom = urandom


def _freeze(start_ns: int) -> None:
    """All of Python's clocks start at `start_ns` and move on by a tick at each look, and by what a program sleeps."""
    looks, slept, really = itertools.count(), [0], time.sleep  # noqa: TID251  wrapped

    def now_ns() -> int:
        return start_ns + next(looks) * TICK_NS + slept[0]

    def now() -> float:
        return now_ns() / 1e9

    def sleep(seconds: float | SupportsIndex, /) -> None:
        really(seconds)
        slept[0] += round(float(seconds) * 1e9)

    time.time, time.time_ns, time.sleep = now, now_ns, sleep  # noqa: TID251  replaced, not asked
    time.monotonic, time.monotonic_ns, time.perf_counter, time.perf_counter_ns = now, now_ns, now, now_ns  # noqa: TID251  as above
    time.process_time, time.process_time_ns = now, now_ns
    real = dt.datetime

    class Frozen(real):  # type: ignore[valid-type,misc]
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:
            return cls.fromtimestamp(now(), tz)

        @classmethod
        def utcnow(cls) -> dt.datetime:
            return cls.fromtimestamp(now(), dt.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> dt.datetime:
            return cls.now()

    Frozen.__name__ = Frozen.__qualname__ = "datetime"
    dt.datetime = Frozen  # type: ignore[misc]
