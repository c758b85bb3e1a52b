"""Many grades at once while a share of all attempts meets a failure of the infrastructure: every one must come out right.

    python -m benchmarks.grades --grades 2000 --failures 0.2 --output benchmarks/results/grades.json

The failures are real ones: the sandbox of an attempt is killed while it works, cannot be started, or hangs until the grader gives up.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from benchmarks.measure import circumstances
from weightsync.errors import Unavailable
from weightsync.rl.graders.functions import Case, grade_function
from weightsync.rl.graders.retry import Patience, graded
from weightsync.rl.records import Grade, Outcome
from weightsync.rl.sandbox.api import Result, Sandbox, Snapshot
from weightsync.rl.sandbox.zygote import Zygote

LIMIT_S = 3.0  # of an attempt, beside what it waits for its turn
CASES = tuple(Case([[n, -n, 3]], 3) for n in range(4))
PROGRAMS = ("f = sum", "f = lambda x: 4", "f = lambda x: 1 / 0", "def f(x): return len(x)", "import os; os._exit(0)")
WORTH = (1.0, 0.0, 0.0, 1.0, 0.0)  # of each program, said beforehand


class Failing:
    """Sandboxes, a share of which fails."""

    def __init__(self, inner: Zygote, share: float, seed: int) -> None:
        self._inner, self._share, self._random = inner, share, random.Random(seed)
        self.injected: Counter[str] = Counter()
        self.attempts = 0

    async def create(self, state: Snapshot | None = None, files: Mapping[str, bytes] | None = None) -> Sandbox:
        self.attempts += 1
        how = self._random.choice(("no_start", "killed", "hang")) if self._random.random() < self._share else None
        if how:
            self.injected[how] += 1
        if how == "no_start":
            raise Unavailable("injected: no sandbox")
        sandbox = await self._inner.create(state, files)
        return Doomed(sandbox, how) if how else sandbox

    async def close(self) -> None:
        await self._inner.close()


class Doomed:
    """A sandbox that fails when it is used."""

    def __init__(self, inner: Sandbox, how: str) -> None:
        self._inner, self._how = inner, how

    async def exec(self, command: Sequence[str], **named: Any) -> Result:
        if self._how == "killed":
            await self._inner.terminate()
        else:
            await asyncio.sleep(3600)
        return await self._inner.exec(command, **named)

    async def put(self, files: Mapping[str, bytes]) -> None:
        await self._inner.put(files)

    async def snapshot(self) -> Snapshot:
        return await self._inner.snapshot()

    async def terminate(self) -> None:
        await self._inner.terminate()


async def grade_all(count: int, failures: float, seed: int) -> dict[str, Any]:

    async with Zygote(at_once=16) as warm:
        sandboxes = Failing(warm, failures, seed)
        turns = asyncio.Semaphore(32)

        async def attempt(number: int) -> Grade:
            async with turns:
                try:
                    async with asyncio.timeout(LIMIT_S):
                        return await grade_function(sandboxes, PROGRAMS[number % len(PROGRAMS)], "f", CASES)
                except TimeoutError as error:
                    raise Unavailable("the grader did not answer") from error

        patience = Patience(attempts=12, limit_s=600.0, longest_wait_s=0.5)
        began = time.perf_counter()
        grades = await asyncio.gather(*(graded(lambda number=number: attempt(number), patience) for number in range(count)))
        seconds = time.perf_counter() - began
    right = sum(grade.outcome is Outcome.GRADED and grade.reward == WORTH[number % len(WORTH)] for number, grade in enumerate(grades))
    return {
        "grades": count,
        "resolved_rightly": right,
        "outcomes": Counter(str(grade.outcome) for grade in grades),
        "rewards_of_one": sum(grade.reward == 1.0 for grade in grades),
        "attempts": sandboxes.attempts,
        "injected": sandboxes.injected,
        "injected_share": round(sandboxes.injected.total() / sandboxes.attempts, 4),
        "seconds": round(seconds, 2),
        "grades_per_s": round(count / seconds, 1),
    }


def main(grades: int = 2000, failures: float = 0.2, seed: int = 1, small: bool = False, output: Path | None = None) -> None:
    """Grade them all at once; exits with 1 when one comes out wrong."""
    found = asyncio.run(grade_all(200 if small else grades, failures, seed))
    text = json.dumps({**circumstances(), **found}, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)
    raise typer.Exit(int(found["resolved_rightly"] != found["grades"]))


if __name__ == "__main__":
    typer.run(main)
