"""Sort digits: `402913>` wants `012349`. Small enough to be learned in two minutes on a CPU."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weightsync.rl.environments.question import Question, ask_once, exact
from weightsync.rl.records import Grade

if TYPE_CHECKING:
    from weightsync.rl.api import Dialogue, Environment


@dataclass(frozen=True)
class Sort:
    """The reward is 1 for the digits in ascending order, 0 for anything else; `places` is the share of digits in their place."""

    digits: int = 6
    name: str = "sort"

    def problem(self, seed: int) -> Question:
        """The question of a seed."""
        digits = np.random.default_rng(seed).integers(0, 10, self.digits)
        return Question("".join(map(str, digits)) + ">", "".join(map(str, np.sort(digits))))

    async def play(self, problem: Question, dialogue: "Dialogue") -> str:
        """One turn."""
        return await ask_once(problem, dialogue)

    async def grade(self, problem: Question, result: str) -> Grade:
        """Exact match."""
        places = sum(said == right for said, right in zip(result, problem.answer, strict=False)) / len(problem.answer)
        return exact(problem, result, places=places)


if TYPE_CHECKING:
    _conforms: type[Environment] = Sort
