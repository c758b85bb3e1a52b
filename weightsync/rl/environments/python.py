"""Write a Python function; it runs in a sandbox against hidden tests. The policy may run code first: a turn that begins with `run:`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightsync.rl.graders.functions import Case, grade_function
from weightsync.rl.graders.retry import Patience, graded
from weightsync.rl.records import Grade
from weightsync.rl.sandbox.api import Sandboxes
from weightsync.rl.text import printable

if TYPE_CHECKING:
    from weightsync.rl.api import Dialogue, Environment

RUN = "run:"
CASES = 8
SHOWN = 200  # characters of a program's output that the policy sees

Values = Sequence[int]


class Kind(NamedTuple):
    """A function to write: what it does in words, a solution, and the same in Python for the hidden tests."""

    text: str
    solution: str
    right: Callable[[Values], object]


KINDS = (
    Kind("the sum", "sum(x)", lambda values: int(sum(values))),
    Kind("the largest", "max(x)", lambda values: int(max(values))),
    Kind("the smallest", "min(x)", lambda values: int(min(values))),
    Kind("x sorted", "sorted(x)", lambda values: sorted(int(value) for value in values)),
    Kind("x reversed", "x[::-1]", lambda values: [int(value) for value in values][::-1]),
    Kind("how many are even", "sum(v % 2 == 0 for v in x)", lambda values: sum(int(value) % 2 == 0 for value in values)),
)


class Exercise(NamedTuple):
    """What is asked for, an answer that passes, and the hidden tests."""

    prompt: str
    answer: str
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Python:
    """The reward is 1 when all hidden tests pass. `turns`: how often the policy may speak, the answer included."""

    sandboxes: Sandboxes
    turns: int = 3
    room: int = 64
    patience: Patience = field(default_factory=Patience)
    name: str = "python"

    def problem(self, seed: int) -> Exercise:
        """The exercise of a seed."""
        random = np.random.default_rng(seed)
        kind = KINDS[int(random.integers(len(KINDS)))]
        lists = [[int(value) for value in random.integers(-99, 100, random.integers(1, 9))] for _ in range(CASES)]
        prompt = f"# f(x) gives {kind.text} of a list\n"
        return Exercise(prompt, f"f=lambda x:{kind.solution}", tuple(Case([values], kind.right(values)) for values in lists))

    async def play(self, problem: Exercise, dialogue: "Dialogue") -> str:
        """Turns that begin with `run:` are run and answered; the first other one, or the last, is the answer."""
        said = await dialogue.ask(problem.prompt, max_tokens=self.room)
        for _ in range(self.turns - 1):
            if not said.startswith(RUN):
                break
            said = await dialogue.ask(await self._run(said.removeprefix(RUN)), max_tokens=self.room)
        return said

    async def grade(self, problem: Exercise, result: str) -> Grade:
        """In a sandbox of its own, again in another when it breaks down."""
        return await graded(lambda: grade_function(self.sandboxes, result, "f", problem.cases), self.patience)

    async def _run(self, code: str) -> str:
        sandbox = await self.sandboxes.create()
        try:
            result = await sandbox.exec(["python", "-c", code], now_s=0.0)
        finally:
            await sandbox.terminate()
        text = (result.stdout + result.stderr).decode("utf-8", "replace").replace("\0", "?")
        return f"\n[{printable(text)[:SHOWN]}]\n"


if TYPE_CHECKING:
    _conforms: type[Environment] = Python
