"""A run of the loop whose processes are killed again and again, trainer and hub included; and the same run left alone.

    python -m benchmarks.rl_kills --kills 50 --output benchmarks/results/rl_kills.json

Shows that it finishes, that each group counts exactly once, that the bound of the lag holds, and what became of the reward.
"""

import json
import random
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.measure import circumstances
from weightsync.rl.checkpoint import newest
from weightsync.rl.run import Loop
from weightsync.rl.settings import LoopSettings

SETTINGS = LoopSettings(steps=150, prompts=8, samples=8, imitate=64 * 90, lease_s=3.0, lag_versions=2)


def one(settings: LoopSettings, kills: int, pause_s: tuple[float, float], seed: int) -> dict[str, Any]:
    """A run with so many kills."""
    draw, killed = random.Random(seed), {}
    with TemporaryDirectory(prefix="weightsync-kills-") as name:
        place = Path(name)
        began = time.monotonic()
        with Loop(settings, (place / "store").as_uri(), "kills", place / "home") as loop:
            due = time.monotonic() + 10.0
            while loop.tend():
                time.sleep(0.05)
                if sum(killed.values()) < kills and time.monotonic() > due and loop.steps():
                    victim = draw.choice(loop.names)
                    if loop.processes.kill(victim):
                        killed[victim] = killed.get(victim, 0) + 1
                    due = time.monotonic() + draw.uniform(*pause_s)
            took_s, summary, steps = time.monotonic() - began, loop.summary(), loop.steps()
            well = loop.well
        checkpoint = newest(place / "home" / "checkpoints")
    assert checkpoint is not None
    wanted = settings.steps * settings.prompts
    rewards = [row["metrics"]["reward"] for row in steps]
    return {
        "finished": well and checkpoint.step == settings.steps,
        "steps_done": checkpoint.step,
        "steps_told": len(steps),  # what lag and tasks are known of; all of them
        "seconds": took_s,
        "kills": killed,
        "groups_counted": len(checkpoint.consumed),
        "groups_wanted": wanted,
        "tasks_twice": len([n for row in steps for n in row["tasks"]]) - len({n for row in steps for n in row["tasks"]}),
        "lag_bound": settings.lag_versions,
        "lag_max_trained": max(row["metrics"].get("lag_max", 0.0) for row in steps),
        **{key: summary[key] for key in ("reward_start", "reward_end", "swaps", "swaps_proven", "versions", "trainer_waiting")},
        "reward_by_sixth": [
            sum(part) / len(part) for part in (rewards[i * len(rewards) // 6 : (i + 1) * len(rewards) // 6] for i in range(6)) if part
        ],
    }


def main(
    kills: Annotated[int, typer.Option(help="Processes to kill.")] = 50,
    *,
    steps: int = 150,
    seed: int = 0,
    output: Path | None = None,
) -> None:
    """With kills, and without."""
    settings = replace(SETTINGS, steps=steps)
    found = {"killed": one(settings, kills, (1.0, 4.0), seed), "left_alone": one(settings, 0, (1.0, 1.0), seed)}
    result = {**circumstances(), "steps": steps, **found}
    text = json.dumps(result, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    typer.run(main)
