"""Makes real successive checkpoints: a small policy trained by on-policy policy gradients, one safetensors directory per step.

python -m benchmarks.make_checkpoints OUT --steps 5 --lr 1e-6
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from weightsync.clock import SYSTEM
from weightsync.rl.decoder import Shape
from weightsync.rl.tiny import Settings, Trainer


def main(
    out: Path,
    *,
    steps: Annotated[int, typer.Option(help="optimiser steps, each of which writes a checkpoint")] = 4,
    lr: Annotated[float, typer.Option(help="learning rate")] = 1e-6,
    width: Annotated[int, typer.Option(help="model width, a multiple of 64")] = 256,
    layers: int = 6,
    warm_up: Annotated[int, typer.Option(help="steps of imitation before the first checkpoint")] = 60,
    settle: Annotated[int, typer.Option(help="GRPO steps before the first checkpoint, for AdamW's averages")] = 12,
    threads: Annotated[int, typer.Option(help="of torch")] = 1,
    seed: int = 0,
) -> None:
    """Write OUT/step000 (after warming up) to OUT/stepNNN."""
    torch.set_num_threads(threads)
    shape = Shape(width=width, layers=layers, heads=width // 64, kv_heads=max(1, width // 128), mlp_width=width * 11 // 4)
    trainer = Trainer(Settings(shape=shape, learning_rate=lr, seed=seed))
    console = Console(stderr=True)
    with console.status(f"warming up {trainer.parameters:,} parameters"):
        trainer.warm_up(warm_up, settle)
    out.mkdir(parents=True, exist_ok=True)
    trainer.save(out / "step000")
    for _ in range(steps):
        start = SYSTEM.monotonic_s()
        result = trainer.step()
        trainer.save(out / f"step{result.step:03d}")
        console.print(f"step {result.step}: reward {result.reward:.3f}, exact {result.exact:.3f}, {SYSTEM.monotonic_s() - start:.2f} s")


if __name__ == "__main__":
    typer.run(main)
