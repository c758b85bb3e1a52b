"""Add or subtract: `48-19=` wants `29`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weightsync.rl.environments.question import Question, ask_once, exact
from weightsync.rl.records import Grade

if TYPE_CHECKING:
    from weightsync.rl.api import Dialogue, Environment


@dataclass(frozen=True)
class Arithmetic:
    """Two numbers of up to `digits` digits; the reward is 1 for the exact result. The answer's length is not given away."""

    digits: int = 2
    name: str = "arithmetic"

    def problem(self, seed: int) -> Question:
        """The question of a seed."""
        random = np.random.default_rng(seed)
        first, second = (int(number) for number in random.integers(0, 10**self.digits, 2))
        plus = bool(random.integers(0, 2))
        result = first + second if plus else first - second
        return Question(f"{first}{'+' if plus else '-'}{second}=", str(result), room=self.digits + 3)

    async def play(self, problem: Question, dialogue: "Dialogue") -> str:
        """One turn."""
        return await ask_once(problem, dialogue)

    async def grade(self, problem: Question, result: str) -> Grade:
        """Exact match."""
        return exact(problem, result)


if TYPE_CHECKING:
    _conforms: type[Environment] = Arithmetic
