"""Aligned numerics: whoever samples and whoever learns run the same kernels over the same shapes, so their log-probabilities are equal.

Floating-point sums depend on their order, and kernels choose it by the shape of their input. Here every pass has one shape, `rows` x the
model's whole context, in bf16 and without a cache, whatever is asked; causal attention keeps what stands behind a token out of its
result. The price: each drawn token costs a pass over the whole context, and the learner computes padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weightsync.rl.decoder import Decoder
from weightsync.rl.mlp import FREE, Routing


@dataclass(frozen=True)
class Reader:
    """Reads token rows in passes of one shape; `rows` must be the same for all who are to agree."""

    rows: int = 16

    def last(self, decoder: Decoder, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
        """Logits (float32) after each of `texts`, and the experts of all their tokens (texts, context, layers, k)."""
        logits, experts = [], []
        for start in range(0, len(texts), self.rows):
            part = texts[start : start + self.rows]
            tokens = torch.zeros(self.rows, decoder.shape.context, dtype=torch.int64)
            for row, text in enumerate(part):
                tokens[row, : len(text)] = torch.tensor(text)
            routing = Routing()
            found = decoder(tokens, routing=routing)
            logits.append(found[torch.arange(len(part)), torch.tensor([len(text) - 1 for text in part])].float())
            if decoder.shape.experts:
                experts.append(routing.chosen[: len(part)])
        return torch.cat(logits), torch.cat(experts) if experts else None

    def all(self, decoder: Decoder, tokens: Tensor, experts: Tensor | None) -> Tensor:
        """Logits after every one of `tokens` (up to `rows`, up to the context); with gradients, and `experts` replayed."""
        count, length = tokens.shape
        whole = torch.zeros(self.rows, decoder.shape.context, dtype=torch.int64)
        whole[:count, :length] = tokens
        replay = None
        if experts is not None:
            replay = torch.full((self.rows, decoder.shape.context, *experts.shape[2:]), FREE, dtype=torch.uint8)
            replay[:count, :length] = experts
        return decoder(whole, routing=Routing(replay))[:count, :length]
