"""How long a sandbox takes to start, and a graded program in one: forked from a warm interpreter, beside a new Python process.

python -m benchmarks.sandbox_starts --starts 1000 --output benchmarks/results/sandbox_starts.json
"""

import asyncio
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import typer

from benchmarks.measure import circumstances
from weightsync.rl.sandbox.zygote import Zygote

PROGRAM = ["python", "-c", "print(6 * 7)"]


def quantiles(seconds: list[float]) -> dict[str, Any]:
    ms = np.array(seconds) * 1e3
    return {"count": len(ms), **{f"p{share}_ms": round(float(np.percentile(ms, share)), 2) for share in (50, 90, 99)}}


async def starts(count: int) -> dict[str, Any]:
    graded, ended, cpu_s = [], [], processor_s()
    async with Zygote() as sandboxes:
        await (await sandboxes.create()).terminate()
        sandboxes.start_s.clear()
        for _ in range(count):
            began = time.perf_counter()
            sandbox = await sandboxes.create()
            result = await sandbox.exec(PROGRAM)
            graded.append(time.perf_counter() - began)
            assert result.stdout == b"42\n"
            await sandbox.terminate()
            ended.append(time.perf_counter() - began)
        bounds, starting = sandboxes.bounds, list(sandboxes.start_s)
    return {
        "bounds": bounds,
        "start": quantiles(starting),
        "start_and_program": quantiles(graded),
        "until_it_is_gone": quantiles(ended),
        "cpu_ms_each": round((processor_s() - cpu_s) / count * 1e3, 2),
    }


def new_processes(count: int) -> dict[str, Any]:
    seconds, cpu_s = [], processor_s()
    for _ in range(count):
        began = time.perf_counter()
        assert subprocess.run([sys.executable, "-S", *PROGRAM[1:]], capture_output=True, check=True).stdout == b"42\n"
        seconds.append(time.perf_counter() - began)
    return {**quantiles(seconds), "cpu_ms_each": round((processor_s() - cpu_s) / count * 1e3, 2)}


def processor_s() -> float:
    """Of this process and of all its descendants that have ended: what to compare on a busy machine."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def main(starts_: int = typer.Option(1000, "--starts"), small: bool = False, output: Path | None = None) -> None:
    """Start them one after another."""
    count = 50 if small else starts_
    found = asyncio.run(starts(count))
    found["new_python_without_any_sandbox"] = new_processes(max(20, count // 10))
    text = json.dumps({**circumstances(), **found}, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    typer.run(main)
