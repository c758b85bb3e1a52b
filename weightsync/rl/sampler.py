"""Continuous batching over a decoder: requests join and leave between steps, all that are in share each pass.

    sampler = Sampler(decoder, slots=64)
    sampler.add(draw)
    for draw in sampler.step(version): ...      # those that this step ended

A request holds a row of the caches; rows stay dense, so a pass sees views of them and no copies. When the version has changed, what the
caches hold is of other weights: the contexts are read again before the next token is drawn, so its log-probability is exactly that of
the version it is labelled with.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weightsync.errors import Invalid
from weightsync.rl.aligned import Reader
from weightsync.rl.api import Completion, Finish
from weightsync.rl.decoder import Cache, Decoder
from weightsync.rl.mlp import FREE, Routing
from weightsync.rl.text import END

GREEDY = 1e-6  # temperatures below draw the likeliest token


@dataclass(eq=False)
class Draw:
    """One request. `uniforms` (max_tokens,) in [0, 1) decide its draws; temperature 0 draws the likeliest."""

    context: list[int]
    uniforms: NDArray[np.float64]
    temperature: float = 1.0
    finish: Finish | None = None
    drawn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    read: list[NDArray[np.uint8]] = field(default_factory=list)  # experts, for all tokens read, in order; empty for a dense model

    @property
    def length(self) -> int:
        """Tokens so far, given and drawn."""
        return len(self.context) + len(self.drawn)

    def completion(self) -> Completion:
        """What was drawn; of a request that was not ended, as `ABORTED`."""
        experts = context = None
        if self.read:
            rows = np.concatenate(self.read)[: self.length]
            missing = np.full((self.length - len(rows), *rows.shape[1:]), FREE, np.uint8)
            rows = np.concatenate([rows, missing])
            context, experts = rows[: len(self.context)], rows[len(self.context) :]
        arrays = (np.array(self.drawn, np.int32), np.array(self.logprobs, np.float32), np.array(self.versions, np.int64))
        return Completion(*arrays, self.finish or Finish.ABORTED, experts, context)


class Sampler:
    """Draws for up to `slots` requests at once; more wait. `reader`: read everything again for each token, in one fixed shape (aligned)."""

    def __init__(self, decoder: Decoder, slots: int = 64, *, reader: Reader | None = None) -> None:
        self._decoder, self._slots, self._reader = decoder, slots, reader
        self._caches = [] if reader else decoder.caches(slots, decoder.shape.context)
        self._waiting: deque[Draw] = deque()
        self._rows: list[Draw] = []
        self._logits: Tensor = torch.zeros(slots, decoder.shape.vocabulary)
        self._version: int | None = None

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._rows or self._waiting)

    @property
    def running(self) -> Sequence[Draw]:
        """Requests that share the passes."""
        return self._rows

    def add(self, draw: Draw) -> None:
        """Takes a request. Raises `Invalid` where not one token fits behind its context."""
        if not 0 < len(draw.context) < self._decoder.shape.context:
            raise Invalid(f"{len(draw.context)} tokens, and the model reads from 1 to {self._decoder.shape.context - 1} before it draws")
        self._waiting.append(draw)

    def drop(self, draws: Sequence[Draw]) -> None:
        """Forgets requests."""
        for draw in draws:
            if draw in self._waiting:
                self._waiting.remove(draw)
        self._leave([index for index, row in enumerate(self._rows) if row in draws])

    @torch.inference_mode()
    def step(self, version: int) -> list[Draw]:
        """One token for everybody, under `version`; gives those that ended."""
        if version != self._version:
            self._version = version
            self._read(0)
        if self._waiting and len(self._rows) < self._slots:
            first = len(self._rows)
            while self._waiting and len(self._rows) < self._slots:
                self._rows.append(self._waiting.popleft())
            self._read(first)
        if not self._rows:
            return []
        self._choose(version)
        ended = [index for index, draw in enumerate(self._rows) if draw.finish]
        found = [self._rows[index] for index in ended]
        self._leave(ended)
        if self._rows:
            self._next()
        return found

    def _choose(self, version: int) -> None:
        count = len(self._rows)
        temperatures = torch.tensor([max(draw.temperature, GREEDY) for draw in self._rows])
        logprobs = (self._logits[:count] / temperatures.clamp(min=0.01)[:, None]).log_softmax(-1)
        uniforms = torch.tensor([draw.uniforms[len(draw.drawn)] for draw in self._rows], dtype=torch.float64)
        sums = logprobs.double().exp().cumsum(-1)
        tokens = (sums <= (uniforms * sums[:, -1])[:, None]).sum(-1).clamp(max=logprobs.shape[-1] - 1)
        tokens = torch.where(temperatures <= GREEDY, logprobs.argmax(-1), tokens)
        chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
        for draw, token, logprob in zip(self._rows, tokens.tolist(), chosen.tolist(), strict=True):
            draw.drawn.append(token)
            draw.logprobs.append(logprob)
            draw.versions.append(version)
            if token == END:
                draw.finish = Finish.STOP
            elif len(draw.drawn) == len(draw.uniforms) or draw.length == self._decoder.shape.context:
                draw.finish = Finish.LENGTH

    def _leave(self, indices: Sequence[int]) -> None:
        """Takes rows out, filling each hole with the last row."""
        for index in sorted(indices, reverse=True):
            last = len(self._rows) - 1
            if index != last:
                self._rows[index] = self._rows[last]
                self._logits[index] = self._logits[last]
                for cache in self._caches:
                    cache.keys[index], cache.values[index] = cache.keys[last], cache.values[last]
            self._rows.pop()

    def _next(self) -> None:
        """Reads the token that each row drew last."""
        count = len(self._rows)
        if self._reader:
            self._read(0)
            return
        tokens = torch.tensor([draw.drawn[-1] for draw in self._rows])[:, None]
        places = torch.tensor([draw.length - 1 for draw in self._rows])
        routing = Routing()
        self._logits[:count] = self._decoder(tokens, self._caches, places, routing)[:, 0].float()
        if self._decoder.shape.experts:
            for draw, experts in zip(self._rows, routing.chosen.numpy(), strict=True):
                draw.read.append(experts)

    def _read(self, first: int) -> None:
        """Reads all tokens of the rows from `first` on; equal contexts, as those of a group, once."""
        draws = self._rows[first:]
        if not draws:
            return
        texts = [(*draw.context, *draw.drawn) for draw in draws]
        unique = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        index = torch.tensor([unique[text] for text in texts])
        logits, experts = self._reader.last(self._decoder, list(unique)) if self._reader else self._fill(list(unique), index, first)
        self._logits[first : len(self._rows)] = logits[index]
        if experts is not None:
            for draw, text in zip(draws, texts, strict=True):
                known = sum(map(len, draw.read))  # the first reading of a token is the one under which what follows was drawn
                draw.read.append(experts[unique[text], known : len(text)].numpy())

    def _fill(self, texts: Sequence[tuple[int, ...]], index: Tensor, first: int) -> tuple[Tensor, Tensor | None]:
        longest = max(map(len, texts))
        tokens = torch.tensor([text + (0,) * (longest - len(text)) for text in texts])
        fresh, routing = self._decoder.caches(len(texts), longest), Routing()
        logits = self._decoder(tokens, fresh, 0, routing)
        for cache, new in zip(self._caches, fresh, strict=True):
            _copy(cache, new, index, first, longest)
        last = logits[torch.arange(len(texts)), torch.tensor([len(text) - 1 for text in texts])].float()
        return last, routing.chosen if self._decoder.shape.experts else None


def _copy(cache: Cache, new: Cache, index: Tensor, first: int, length: int) -> None:
    end = first + len(index)
    cache.keys[first:end, :, :length] = new.keys[index]
    cache.values[first:end, :, :length] = new.values[index]
