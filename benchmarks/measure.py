"""Timing, and what to say about the machine and the commit beside every number."""

import ctypes
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from weightsync.codec import dispatch_level

BASELINE_BYTES = 256_000_000
_LIBC = ctypes.CDLL(None)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds that this thread spends in `work`: what a busy machine disturbs least."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def gb_per_s(nbytes: int, seconds: list[float]) -> float:
    """Median speed."""
    return nbytes / median(seconds) / 1e9


def _command(*arguments: str) -> str:
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return result.stdout.strip() if result.returncode == 0 else ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return f"{fields.get('model name', platform.processor())} (family {fields.get('cpu family')}, model {fields.get('model')})"


def circumstances() -> dict[str, Any]:
    """Machine, commit, date and command, for the head of a results file."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "zstandard", "xxhash")},
        "kernel": dispatch_level(),
        "commit": _command("git", "rev-parse", "HEAD") + ("-dirty" if _command("git", "status", "--porcelain", "../weightsync") else ""),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
    }


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).stem


class Baseline:
    """memcpy and a two-stream read (memcmp of equal buffers) over buffers far larger than the caches, in bytes of one buffer."""

    def __init__(self, nbytes: int = BASELINE_BYTES) -> None:
        self._left = np.ones(nbytes, np.uint8)
        self._right = np.ones(nbytes + 4096 + 64, np.uint8)[4096 + 64 :]  # equal offsets in a page cost up to 30 %
        self._memcpy: list[float] = []
        self._read: list[float] = []

    def measure(self) -> None:
        """Once more."""
        left, right = ctypes.c_void_p(self._left.ctypes.data), ctypes.c_void_p(self._right.ctypes.data)
        size = ctypes.c_size_t(self._left.nbytes)
        self._memcpy.append(cpu_s(lambda: _LIBC.memmove(right, left, size)))
        self._read.append(cpu_s(lambda: _LIBC.memcmp(right, left, size)))

    def results(self) -> dict[str, float]:
        """GB/s of one core."""
        size = self._left.nbytes
        return {"memcpy_gb_s": gb_per_s(size, self._memcpy), "two_stream_read_gb_s": gb_per_s(size, self._read)}
