"""One context window, recorded token by token as the engine saw it. What does not fit together is refused, counted and named.

window = Recording(refused)
window.give(encode("3 1 2>"))                     # not drawn by the policy
window.take(await policy.complete(window.tokens, max_tokens=8), max_tokens=8)
window.segment()
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Corrupt
from weightsync.rl.api import Completion, Finish
from weightsync.rl.records import Segment
from weightsync.rl.text import END, VOCABULARY

NO_EXPERT = 255  # in `experts`: nothing was recorded for this token
LOGPROB_SLACK = 1e-4  # a log-probability is rounded, and one of a certain token may come out above 0


class Recording:
    """Grows by tokens that are given and tokens that are drawn. `refused` counts what was refused, by name."""

    def __init__(self, refused: Counter[str]) -> None:
        self.tokens: list[int] = []
        self._refused = refused
        self._made: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._experts: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def drawn(self) -> int:
        """How many of the tokens the policy drew."""
        return sum(self._made)

    def give(self, tokens: Sequence[int] | NDArray[Any]) -> None:
        """Tokens that the policy did not draw: a prompt, a tool's answer."""
        count = len(tokens)
        self.tokens += [int(token) for token in tokens]
        self._made += [False] * count
        self._logprobs += [0.0] * count
        self._versions += [0] * count

    def take(self, completion: Completion, *, max_tokens: int) -> None:
        """Tokens that the policy drew after `tokens`. Raises `Corrupt` where the completion contradicts itself or the request."""
        problem = _problem(completion, max_tokens) or self._experts_problem(completion)
        if problem:
            name, why = problem
            self._refused[name] += 1
            raise Corrupt(f"a completion was refused: {name}: {why}", remedy="the engine and this release do not agree; see its log")
        self._keep_experts(completion)
        self.tokens += completion.tokens.tolist()
        self._made += [True] * len(completion.tokens)
        self._logprobs += completion.logprobs.tolist()
        self._versions += completion.versions.tolist()

    def segment(self) -> Segment:
        """What was recorded so far."""
        experts = self._experts
        if experts is not None:
            experts = _padded(experts, len(self))
        return Segment(
            np.array(self.tokens, np.int32),
            np.array(self._made, np.bool_),
            np.array(self._logprobs, np.float32),
            np.array(self._versions, np.int64),
            experts,
        )

    def _experts_problem(self, completion: Completion) -> tuple[str, str] | None:
        parts = {"experts": (completion.experts, len(completion.tokens)), "context_experts": (completion.context_experts, len(self))}
        for name, (part, length) in parts.items():
            if part is not None and (part.ndim != 3 or len(part) != length):
                return name, f"shape {part.shape} for {length} tokens"
            if part is not None and self._experts is not None and part.shape[1:] != self._experts.shape[1:]:
                return name, f"shape {part.shape} after {self._experts.shape}"
        return None

    def _keep_experts(self, completion: Completion) -> None:
        """The first reading of a token counts; later ones fill what that left open."""
        new = completion.experts
        if new is None:
            return
        if self._experts is None:
            self._experts = np.zeros((0, *new.shape[1:]), np.uint8)
        before = _padded(self._experts, len(self))
        if completion.context_experts is not None:
            before = np.where(before == NO_EXPERT, completion.context_experts, before)
        self._experts = np.concatenate([before, new])


def _padded(experts: NDArray[np.uint8], length: int) -> NDArray[np.uint8]:
    missing = np.full((length - len(experts), *experts.shape[1:]), NO_EXPERT, np.uint8)
    return np.concatenate([experts, missing])


def _problem(completion: Completion, max_tokens: int) -> tuple[str, str] | None:
    tokens, count = completion.tokens, len(completion.tokens)
    ends = np.flatnonzero(tokens == END)
    stopped = completion.finish is Finish.STOP
    checks = (
        ("lengths", {len(completion.logprobs), len(completion.versions)} != {count}, f"{count} tokens, and not as many of the others"),
        ("too_many", count > max_tokens, f"{count} tokens where {max_tokens} were asked for"),
        ("nothing", count == 0 and completion.finish is not Finish.ABORTED, "no token was drawn"),
        ("vocabulary", bool(count) and not (tokens.min() >= 0 and tokens.max() < VOCABULARY), f"tokens reach beyond {VOCABULARY}"),
        ("end", (ends.tolist() != [count - 1]) if stopped else bool(len(ends)), f"{completion.finish} with ends at {ends.tolist()}"),
        ("logprobs", not _are_logprobs(completion.logprobs), "a log-probability is above 0 or not a number"),
        ("versions", bool((completion.versions < 1).any()), "a token has no version"),
    )
    return next(((name, why) for name, wrong, why in checks if wrong), None)


def _are_logprobs(logprobs: NDArray[Any]) -> bool:
    return bool((np.isfinite(logprobs) & (logprobs <= LOGPROB_SLACK)).all())
