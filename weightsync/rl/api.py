"""What the parts of the loop ask of each other: a policy that completes tokens, an environment that makes problems and grades answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from weightsync.rl.records import Grade


class Finish(StrEnum):
    """Why a completion ended: the policy ended its turn, the limit was reached, or the engine gave it up (ask again)."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Completion:
    """What the policy drew, one row per token: exactly what `Segment` holds of drawn tokens. Versions may change in the middle.

    `experts` and, for the tokens that were given, `context_experts` (uint8, tokens x layers x k) are those chosen where that token was
    *read*; 255 where none was recorded, as for the last token drawn, which nobody has read yet. None for a dense model.
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int64]
    finish: Finish
    experts: NDArray[np.uint8] | None = None
    context_experts: NDArray[np.uint8] | None = None


class Policy(Protocol):
    """An inference engine as episodes see it; many calls at once share its batch."""

    async def complete(
        self, tokens: Sequence[int], *, max_tokens: int, temperature: float = 1.0, seed: int | None = None, min_version: int = 0
    ) -> Completion:
        """Draws up to `max_tokens` after `tokens`, up to and with the token that ends a turn (`weightsync.rl.text.END`).

        Temperature 0: the likeliest. `seed`: the same draws again from the same weights. Raises `Unavailable` (retry) where the engine
        serves nothing, or nothing from `min_version` on.
        """
        ...


class Dialogue(Protocol):
    """One episode's exact tokens while an agent talks with the policy; `weightsync.rl.episode` makes and records it."""

    async def ask(self, text: str, *, max_tokens: int) -> str:
        """Appends `text` to the context, lets the policy take a turn, and gives what it said. Context that overflows is compacted."""
        ...


class Environment(Protocol):
    """Makes problems from seeds, plays them, grades the result. Stateless: one object serves many episodes at once."""

    @property
    def name(self) -> str:
        """Under which tasks ask for it."""
        ...

    def problem(self, seed: int) -> Any:
        """The problem of a seed, always the same one."""
        ...

    async def play(self, problem: Any, dialogue: Dialogue) -> Any:
        """The agent: an ordinary program. Gives what the grader needs."""
        ...

    async def grade(self, problem: Any, result: Any) -> Grade:
        """What it was worth. An error of the infrastructure is an outcome, never a reward of zero."""
        ...
