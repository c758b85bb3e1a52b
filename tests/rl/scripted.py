"""A policy that says what it is told to, for tests of what is around policies. It labels and scores tokens as an engine does."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weightsync.errors import Unavailable
from weightsync.rl.api import Completion, Finish
from weightsync.rl.text import END, decode, encode


@dataclass
class Scripted:
    """Each entry of `script` is one draw: text (ends its turn), a `Completion`, an error to raise, or `cut(text)`."""

    script: list
    version: int = 1
    experts: bool = False
    asked: list = field(default_factory=list)

    async def complete(self, tokens: Sequence[int], *, max_tokens, temperature=1.0, seed=None, min_version=0) -> Completion:
        await asyncio.sleep(0)
        self.asked.append((decode(tokens), max_tokens, seed, min_version))
        said = self.script.pop(0)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, Completion):
            return said
        if callable(said):
            return said(self.version)
        drawn = [*encode(said).tolist(), END]
        if len(drawn) <= max_tokens:
            return completion(drawn, Finish.STOP, self.version)
        return completion(drawn[:max_tokens], Finish.LENGTH, self.version)


def completion(drawn, finish, version=1, **changed) -> Completion:
    tokens = np.array(drawn, np.int32)
    arrays = {
        "tokens": tokens,
        "logprobs": np.linspace(-1, -0.1, len(tokens), dtype=np.float32),
        "versions": np.full(len(tokens), version, np.int64),
    }
    return Completion(**{**arrays, **changed}, finish=finish) if "finish" not in changed else Completion(**{**arrays, **changed})


def cut(text, version=None):
    """An engine that gives up after `text`."""
    return lambda now: completion(encode(text), Finish.ABORTED, version or now)


DOWN = Unavailable("no version serves")
