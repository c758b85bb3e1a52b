"""What becomes of a context that overflows: the policy sums it up, and goes on in a new window with the task and its summary.

The summary is drawn like everything else: its tokens stand in the old segment as made, and are trained with the episode's reward.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weightsync.rl.text import END, encode


@dataclass(frozen=True)
class Compaction:
    """`ask` is what the policy is told, `max_tokens` what its summary may have, `before` and `after` stand around it in the new window."""

    ask: str = "\n[Sum up what you need to go on.]\n"
    max_tokens: int = 64
    before: str = "\n[So far: "
    after: str = "]\n"

    @property
    def reserve(self) -> int:
        """Tokens of a window that are kept free for the summary."""
        return len(self.ask) + self.max_tokens

    def opening(self, task: NDArray[np.int32], summary: NDArray[np.int32]) -> NDArray[np.int32]:
        """The first tokens of the new window: those of the task, and those of the summary as they were drawn, without the end."""
        return np.concatenate([task, encode(self.before), summary[summary != END], encode(self.after)])
