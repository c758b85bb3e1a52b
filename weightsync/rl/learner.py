"""The policy that learns: fp32 masters under AdamW, and their rounding to bf16, which is what is published and drawn from.

learner = Learner(LearnerSettings())
learner.imitate(prompts_and_answers)              # a warm start
step = learner.consume(groups, version=7)         # each group once; version: the one these weights were published as
learner.save(home)                                # durable: from now on the groups count
publisher.publish(step=learner.step, source=learner.weights())
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weightsync.errors import Conflict, Invalid
from weightsync.rl import checkpoint as checkpoints
from weightsync.rl.advantages import Credit, grpo
from weightsync.rl.aligned import Reader
from weightsync.rl.batch import Padded, Row, batches, padded, rows_of
from weightsync.rl.checkpoint import Checkpoint, Numbers
from weightsync.rl.decoder import Decoder, Shape
from weightsync.rl.losses import loss_named
from weightsync.rl.metrics import Step, measured
from weightsync.rl.mlp import Routing
from weightsync.rl.records import Group
from weightsync.rl.text import VOCABULARY

TINY = Shape(vocabulary=VOCABULARY, width=128, layers=4, heads=4, kv_heads=4, head_width=32, mlp_width=256, context=64)
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class LearnerSettings:
    """How to learn. `minibatches`: updates per step; `batch_tokens`: padded tokens in one pass; `temperature`: the one that is drawn with.

    `replay_routes`: experts are those that the engine chose, where it recorded them. `aligned_rows`: not 0 for aligned numerics.
    """

    shape: Shape = TINY
    loss: str = "dppo"
    learning_rate: float = 1.5e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    max_norm: float = 1.0
    minibatches: int = 1
    batch_tokens: int = 8192
    temperature: float = 1.0
    replay_routes: bool = True
    aligned_rows: int = 0
    seed: int = 0
    credit: Credit = field(default=grpo, compare=False)


class Learner:
    """For one thread. `step` counts calls of `consume`; `consumed` are the task numbers of the groups that went in."""

    def __init__(self, settings: LearnerSettings | None = None) -> None:
        self.settings = settings or LearnerSettings()
        self._loss = loss_named(self.settings.loss)
        if self.settings.minibatches < 1 or not self.settings.temperature > 0:
            raise Invalid("a learner needs at least one minibatch and a temperature above 0", remedy="correct its settings")
        generator = torch.Generator().manual_seed(self.settings.seed)
        self._masters = Decoder(self.settings.shape, generator)
        self._policy = Decoder(self.settings.shape, generator).bfloat16()
        self._reader = Reader(self.settings.aligned_rows) if self.settings.aligned_rows else None
        self._optimizer = self._adam(self.settings.learning_rate)
        self.step, self.consumed = 0, Numbers()
        self._round()

    @property
    def decoder(self) -> Decoder:
        """The bf16 policy itself; the next step overwrites its weights."""
        return self._policy

    def consume(self, groups: Sequence[Group], *, version: int = 0) -> Step:
        """One step on `groups`. `version` is the version that these weights were published as: lag is measured from it.

        An update whose gradient is not finite is left out; the groups count all the same. Raises `Conflict` where a group was consumed
        before or comes twice, `Invalid` where one does not fit the model; nothing has changed then.
        """
        numbers = [group.task.number for group in groups]
        again = sorted({number for number in numbers if number in self.consumed or numbers.count(number) > 1})
        if again:
            raise Conflict(f"groups {again} were consumed already", remedy="drop them: each group counts once")
        self._check(groups)
        rows, silent = rows_of(groups, self.settings.credit)
        losses, norms, logprobs = self._descend(rows)
        self.step, self.consumed = self.step + 1, self.consumed.plus(numbers)
        return measured(self.step, groups, version=version, rows=rows, silent=silent, logprobs=logprobs, losses=losses, norms=norms)

    def imitate(self, examples: Sequence[tuple[Sequence[int], Sequence[int]]], *, batch: int = 64, learning_rate: float = 4e-3) -> float:
        """One pass of supervised steps over (prompt, answer) token pairs; gives the last loss. The optimizer of `consume` stays fresh.

        Source of the schedule (fast rise, then linear decay to a tenth): tried on sorting; a policy this small needs no better one.
        """
        optimizer, loss = self._adam(learning_rate), torch.zeros(())
        steps = [examples[start : start + batch] for start in range(0, len(examples), batch)]
        for number, part in enumerate(steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * min(1.0, (number + 1) / 50) * (1 - 0.9 * number / len(steps))
            length = max(len(prompt) + len(answer) for prompt, answer in part)
            tokens, answers = torch.zeros(len(part), length, dtype=torch.int64), torch.zeros(len(part), length, dtype=torch.bool)
            for row, (prompt, answer) in enumerate(part):
                tokens[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
                answers[row, len(prompt) : len(prompt) + len(answer)] = True
            logits = self._masters(tokens[:, :-1])
            loss = functional.cross_entropy(logits[answers[:, 1:]], tokens[:, 1:][answers[:, 1:]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._masters.parameters(), self.settings.max_norm)
            optimizer.step()
        self._masters.zero_grad()
        self._round()
        return float(loss.detach())

    def weights(self) -> dict[str, Tensor]:
        """The published state: bf16 tensors under checkpoint names; the next step overwrites them."""
        return {name: tensor.detach() for name, tensor in self._policy.state_dict().items()}

    def files(self) -> dict[str, bytes]:
        """What to publish beside the weights, so that a restored version is a checkpoint that other tools load."""
        return {"config.json": (json.dumps(self.settings.shape.config(), indent=2) + "\n").encode()}

    def checkpoint(self, extra: Mapping[str, Any] | None = None) -> Checkpoint:
        """All that `restore` needs, and what `extra` (JSON) the caller keeps with it. Views: write it before the next step."""
        tensors = {f"masters.{name}": tensor for name, tensor in self._masters.named_parameters()}
        updates = 0.0
        for name, parameter in self._masters.named_parameters():
            for kind in _MOMENTS if self._optimizer.state[parameter] else ():
                tensors[f"{kind}.{name}"] = self._optimizer.state[parameter][kind]
                updates = float(self._optimizer.state[parameter]["step"])
        kept = {"updates": updates, "shape": asdict(self.settings.shape), "caller": dict(extra or {})}
        return Checkpoint(self.step, self.consumed, tensors, kept)

    def save(self, home: Path, *, extra: Mapping[str, Any] | None = None) -> Path:
        """Writes `HOME/step-NNNNNNNN`, durable when this returns; its directory."""
        return checkpoints.write(home, self.checkpoint(extra))

    def restore(self, checkpoint: Checkpoint) -> Mapping[str, Any]:
        """Goes on from `checkpoint`, bit for bit; gives its `extra`. Raises `Invalid` where it is of another shape."""
        masters = dict(self._masters.named_parameters())
        sizes = {f"masters.{name}": tensor.shape for name, tensor in masters.items()}
        if sizes != {name: tensor.shape for name, tensor in checkpoint.tensors.items() if name.startswith("masters.")}:
            raise Invalid(f"the checkpoint of step {checkpoint.step} is of another model", remedy="give the shape it was made with")
        self._optimizer = self._adam(self.settings.learning_rate)
        with torch.no_grad():
            for name, parameter in masters.items():
                parameter.copy_(checkpoint.tensors[f"masters.{name}"])
                if f"exp_avg.{name}" in checkpoint.tensors:
                    moments = {kind: checkpoint.tensors[f"{kind}.{name}"].clone() for kind in _MOMENTS}
                    self._optimizer.state[parameter] = {"step": torch.tensor(float(checkpoint.extra["updates"])), **moments}
        self.step, self.consumed = checkpoint.step, checkpoint.consumed
        self._round()
        caller: Mapping[str, Any] = checkpoint.extra["caller"]
        return caller

    def logprobs(self, rows: Sequence[Row]) -> list[Tensor]:
        """Log-probabilities (length - 1,) of the tokens of `rows` after their first, under the weights as they are."""
        found: list[Tensor] = [torch.zeros(0)] * len(rows)
        with torch.no_grad():
            for indices in self._passes(rows):
                batch = padded([rows[index] for index in indices])
                for index, own in zip(indices, self._forward(batch), strict=True):
                    found[index] = own[: len(rows[index].segment.tokens) - 1]
        return found

    def _check(self, groups: Sequence[Group]) -> None:
        shape = self.settings.shape
        for group in groups:
            for part in (part for episode in group.episodes for part in episode.segments):
                if len(part.tokens) > shape.context or (
                    len(part.tokens) and not 0 <= part.tokens.min() <= part.tokens.max() < shape.vocabulary
                ):
                    raise Invalid(
                        f"group {group.task.number} has a segment of {len(part.tokens)} tokens that the model cannot read",
                        remedy=f"play with windows of at most {shape.context} tokens below {shape.vocabulary}",
                    )

    def _descend(self, rows: Sequence[Row]) -> tuple[list[float], list[float], list[Tensor]]:
        """Updates once per minibatch: losses, gradient norms, and log-probabilities by row, each as they were before its update."""
        losses, norms, logprobs = [], [], [torch.zeros(0)] * len(rows)
        several = self.settings.minibatches > 1 and len(rows) > 1
        near = self.logprobs(rows) if several else None
        for part in np.array_split(np.arange(len(rows)), self.settings.minibatches) if rows else ():
            own = [rows[index] for index in part.tolist()]
            if not own:
                continue
            loss, found = self._accumulate(own, [near[index] for index in part.tolist()] if near else None)
            losses.append(loss)
            norms.append(self._update())
            for index, values in zip(part.tolist(), found, strict=True):
                logprobs[index] = values
        return losses, norms, logprobs

    def _accumulate(self, rows: Sequence[Row], near: Sequence[Tensor] | None) -> tuple[float, list[Tensor]]:
        """Adds the gradients of the mean loss over all drawn tokens of `rows`."""
        total = sum(int(row.segment.made[1:].sum()) for row in rows)
        logprobs: list[Tensor] = [torch.zeros(0)] * len(rows)
        whole = 0.0
        for indices in self._passes(rows):
            batch = padded([rows[index] for index in indices])
            new = self._forward(batch)
            base = torch.nn.utils.rnn.pad_sequence([near[index] for index in indices], batch_first=True) if near else new.detach()
            loss = (self._loss(new, batch.old, batch.advantages, base)[batch.made]).sum() / total
            loss.backward()
            whole += float(loss.detach())
            for index, own in zip(indices, new.detach(), strict=True):
                logprobs[index] = own[: len(rows[index].segment.tokens) - 1]
        return whole, logprobs

    def _passes(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        if self._reader is None:
            return batches(rows, self.settings.batch_tokens)
        size = self._reader.rows
        return (list(range(start, min(start + size, len(rows)))) for start in range(0, len(rows), size))

    def _forward(self, batch: Padded) -> Tensor:
        """(rows, length - 1) log-probabilities of the tokens that followed."""
        experts = batch.experts if self.settings.replay_routes else None
        if self._reader is None:
            logits = self._masters(batch.tokens, routing=Routing(experts))
        else:
            logits = self._reader.all(self._policy, batch.tokens, experts)
        scaled = logits.float() / self.settings.temperature
        return scaled.log_softmax(-1).gather(-1, batch.next[..., None])[..., 0]

    def _update(self) -> float:
        if self._reader is not None:  # gradients are of the bf16 policy; the masters move
            for master, rounded in zip(self._masters.parameters(), self._policy.parameters(), strict=True):
                master.grad = None if rounded.grad is None else rounded.grad.float()
                rounded.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self._masters.parameters(), self.settings.max_norm)
        if torch.isfinite(norm):
            self._optimizer.step()
        self._optimizer.zero_grad()
        self._round()
        return float(norm)

    def _adam(self, learning_rate: float) -> torch.optim.AdamW:
        settings = self.settings
        return torch.optim.AdamW(self._masters.parameters(), learning_rate, settings.betas, weight_decay=settings.weight_decay)

    @torch.no_grad()
    def _round(self) -> None:
        for published, master in zip(self._policy.parameters(), self._masters.parameters(), strict=True):
            published.copy_(master)
