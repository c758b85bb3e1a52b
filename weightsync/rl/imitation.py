"""What a warm start imitates: questions with their answers, a share of them spoiled, so that there is something left to learn."""

from typing import Protocol, runtime_checkable

import numpy as np

from weightsync.rl.environments.question import Question
from weightsync.rl.text import END, encode

Example = tuple[list[int], list[int]]


@runtime_checkable
class Questions(Protocol):
    """An environment whose problems are questions."""

    def problem(self, seed: int) -> Question:
        """The question of a seed."""
        ...


def examples(environment: Questions, count: int, *, spoiled: float = 0.5, seed: int = 0) -> list[Example]:
    """`count` pairs of prompt and answer tokens; in `spoiled` of them one character of the answer is another of its characters' kind."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        # Seeds from far above: the tasks of a run count from 0.
        question = environment.problem(int(random.integers(1 << 40, 1 << 41)))
        answer = list(question.answer)
        if answer and random.random() < spoiled:
            at = int(random.integers(len(answer)))
            answer[at] = str(random.integers(10)) if answer[at].isdigit() else answer[int(random.integers(len(answer)))]
        found.append((encode(question.prompt).tolist(), [*encode("".join(answer)).tolist(), END]))
    return found
