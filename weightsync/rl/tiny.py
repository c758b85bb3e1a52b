"""A policy small enough for two cores that really learns by reinforcement: it sorts digits.

`Trainer.warm_up` gives it a poor notion of the task by imitation, `Trainer.step` is one on-policy step of GRPO: sample a group of
answers to each prompt with the published bf16 weights, grade them, and push up those better than their group's mean. AdamW moves
fp32 masters; what is published is their rounding to bf16, as in full-size training, so successive checkpoints differ as theirs do.

    trainer = Trainer(Settings(learning_rate=1e-6))
    trainer.warm_up()
    result = trainer.step()
    publisher.publish(step=result.step, source=trainer.weights())
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from weightsync.rl.decoder import Decoder, Shape, sample

ARROW = 10  # token between the digits and their sorted copy; digits are their own tokens
WARM_UP_NOISE = 1 / 3  # share of digits replaced by random ones
MAX_NORM = 1.0  # of a gradient


@dataclass(frozen=True)
class Settings:
    """How to train. A step samples `prompts` x `group` answers."""

    shape: Shape = field(default_factory=Shape)
    learning_rate: float = 1e-6
    warm_up_learning_rate: float = 1e-3
    digits: int = 6
    prompts: int = 8
    group: int = 8
    seed: int = 0


class Result(NamedTuple):
    """One step: its number from 1, mean share of digits in place, share of answers wholly right, loss."""

    step: int
    reward: float
    exact: float
    loss: float


class Trainer:
    """fp32 masters with AdamW, and the bf16 policy that is sampled from and published."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._random = torch.Generator().manual_seed(self.settings.seed)
        self._masters = Decoder(self.settings.shape, self._random)
        self._policy = Decoder(self.settings.shape, self._random).bfloat16()
        self._optimizer = self._adam(self.settings.learning_rate)
        self._step = 0
        self._round()

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self._masters.parameters())

    def warm_up(self, steps: int = 60, settle: int = 12) -> None:
        """Imitate answers with a third of the digits random, then bring AdamW's averages to rest by `settle` uncounted GRPO steps."""
        optimizer = self._adam(self.settings.warm_up_learning_rate)
        for _ in range(steps):
            prompts, answers = self._examples(64)
            wrong = torch.rand(answers.shape, generator=self._random) < WARM_UP_NOISE
            noisy = torch.where(wrong, torch.randint(0, 10, answers.shape, generator=self._random), answers)
            logits = self._answer_logits(prompts, noisy)
            self._update(optimizer, functional.cross_entropy(logits.flatten(0, 1), noisy.flatten()))
        for _ in range(settle):
            self.step()
        self._step = 0

    def step(self) -> Result:
        """One on-policy GRPO step; afterwards `weights()` are those of the new step."""
        prompts, sorted_digits = (part.repeat_interleave(self.settings.group, 0) for part in self._examples(self.settings.prompts))
        answers = sample(self._policy, prompts, self.settings.digits, self._random)
        right = (answers == sorted_digits).float()
        rewards = right.mean(1).view(self.settings.prompts, self.settings.group)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        log_probabilities = self._answer_logits(prompts, answers).log_softmax(-1).gather(-1, answers[..., None]).squeeze(-1)
        loss = -(advantages.flatten()[:, None] * log_probabilities).mean()
        self._update(self._optimizer, loss)
        self._step += 1
        return Result(self._step, float(rewards.mean()), float(right.prod(1).mean()), float(loss.detach()))

    def weights(self) -> dict[str, Tensor]:
        """The published state: bf16 tensors under checkpoint names; the next step overwrites them."""
        return {name: tensor.detach() for name, tensor in self._policy.state_dict().items()}

    def save(self, directory: Path) -> None:
        """Write a Hugging Face checkpoint directory; it appears under its name only when it is complete."""
        partial = directory.with_name(f".{directory.name}.partial")
        partial.mkdir(parents=True, exist_ok=True)
        save_file(self.weights(), partial / "model.safetensors", metadata={"format": "pt"})
        (partial / "config.json").write_text(json.dumps(self.settings.shape.config(), indent=2) + "\n")
        partial.rename(directory)

    def _adam(self, learning_rate: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._masters.parameters(), learning_rate, weight_decay=0.0)

    def _examples(self, count: int) -> tuple[Tensor, Tensor]:
        """Prompts (count, digits + 1) and the right answers (count, digits)."""
        numbers = torch.randint(0, 10, (count, self.settings.digits), generator=self._random)
        return functional.pad(numbers, (0, 1), value=ARROW), numbers.sort(1).values

    def _answer_logits(self, prompts: Tensor, answers: Tensor) -> Tensor:
        """Logits (batch, digits, vocabulary) of each token of `answers` given all before it."""
        logits: Tensor = self._masters(torch.cat([prompts, answers[:, :-1]], 1))
        return logits[:, -answers.shape[1] :]

    def _update(self, optimizer: torch.optim.AdamW, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._masters.parameters(), MAX_NORM)
        optimizer.step()
        self._round()

    @torch.no_grad()
    def _round(self) -> None:
        for published, master in zip(self._policy.parameters(), self._masters.parameters(), strict=True):
            published.copy_(master)
