"""What the loop learns: asynchronous beside synchronous, each loss on stale tokens, and what waiting for environments costs.

    python -m benchmarks.rl_learning --output benchmarks/results/rl_learning.json --plot benchmarks/results/rl_learning.png

A 0.7-million-parameter policy sorts six digits; a warm start on spoiled answers, then GRPO with 16 prompts x 16 samples a step. The rollout
worker is a process of its own; batch i is drawn with exactly the weights of step i - lag. What is in the results holds for this policy.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import torch
import typer
from matplotlib import pyplot as plt

from benchmarks.measure import circumstances
from benchmarks.rl_worker import Worker
from weightsync.rl.environments import open_environment
from weightsync.rl.imitation import examples
from weightsync.rl.learner import TINY, Learner, LearnerSettings
from weightsync.rl.losses import LOSSES
from weightsync.rl.records import Task

PROMPTS, SAMPLES = 16, 16
WARM_STEPS = 80
STALE_RATE, RATE = 3e-4, 1.5e-4  # learning rates: one at which stale tokens do harm, and the default one
EVALUATION = 1 << 30  # task numbers from here on are nobody's training


def warm(seed: int) -> Learner:
    learner = Learner(LearnerSettings(seed=seed))
    learner.imitate(examples(open_environment("sort"), 64 * WARM_STEPS, spoiled=0.5, seed=seed))
    return learner


def tasks(step: int, seed: int, count: int = PROMPTS, samples: int = SAMPLES) -> list[Task]:
    return [Task(step * count + index, "sort", seed * 1_000_003 + step * count + index, samples) for index in range(count)]


def evaluate(worker: Worker, learner: Learner, temperature: float) -> float:
    """Mean reward on 512 unseen problems."""
    worker.order(1, learner.weights(), [Task(EVALUATION + index, "sort", EVALUATION + index, 1) for index in range(512)], 0.0, temperature)
    groups, _ = worker.groups()
    return mean(group.episodes[0].grade.reward for group in groups)


def run(worker: Worker, start: Learner, loss: str, *, lag: int, steps: int, seed: int, rate: float, wait_s: float = 0.0) -> dict[str, Any]:
    """Trains `steps` steps from `start` at exactly `lag` versions (less at the beginning)."""
    learner = Learner(LearnerSettings(seed=seed, loss=loss, learning_rate=rate))
    learner.restore(start.checkpoint())
    began, cpu, waited, ordered = time.monotonic(), time.process_time(), 0.0, 0
    rewards, k3, out = [], [], []
    for step in range(steps):
        while ordered < min(steps, step + lag + 1):
            worker.order(step + 1, learner.weights(), tasks(ordered, seed), wait_s)
            ordered += 1
        before = time.monotonic()
        groups, _ = worker.groups()
        waited += time.monotonic() - before
        done = learner.consume(groups, version=step + 1)
        rewards.append(done.metrics["reward"])
        k3.append(done.metrics["k3"])
        out.append(done.metrics["out_of_band"])
    wall = time.monotonic() - began
    sixth = max(1, steps // 6)
    return {
        "loss": loss,
        "lag": lag,
        "seed": seed,
        "steps": steps,
        "learning_rate": rate,
        "wait_s": wait_s,
        "reward_first_sixth": mean(rewards[:sixth]),
        "reward_last_sixth": mean(rewards[-sixth:]),
        "rewards": [round(reward, 4) for reward in rewards],
        "k3_last_sixth": mean(k3[-sixth:]),
        "out_of_band_last_sixth": mean(out[-sixth:]),
        "wall_s": wall,
        "steps_per_s": steps / wall,
        "trainer_cpu_s": time.process_time() - cpu,
        "trainer_waiting_share": waited / wall,
        "sampled": evaluate(worker, learner, 1.0),
        "greedy": evaluate(worker, learner, 0.0),
    }


def line(part: str, row: dict[str, Any]) -> str:
    return (
        f"{part:8} {row['loss']:14} lag {row['lag']} seed {row['seed']} wait {row['wait_s']:.1f} s: reward "
        f"{row['reward_first_sixth']:.3f} -> {row['reward_last_sixth']:.3f}, sampled {row['sampled']:.3f}, greedy {row['greedy']:.3f}, "
        f"k3 {row['k3_last_sixth']:.1e}, {row['steps_per_s']:.2f} steps/s, waiting {row['trainer_waiting_share']:.0%}"
    )


def conclude(results: dict[str, Any]) -> dict[str, Any]:
    """Differences between the synchronous and the asynchronous runs."""
    found: dict[str, Any] = {}
    ends = {lag: {row["seed"]: row["sampled"] for row in results["long"] if row["lag"] == lag} for lag in (0, 1)}
    both = sorted(ends[0].keys() & ends[1].keys())  # a run that was cut short has seeds without their pair
    if len(both) > 1:
        found["final_sampled"] = {
            "seeds": both,
            "synchronous": mean(ends[0][seed] for seed in both),
            "asynchronous": mean(ends[1][seed] for seed in both),
            "difference": mean(ends[1][seed] - ends[0][seed] for seed in both),
            "standard_error": stdev(ends[1][seed] - ends[0][seed] for seed in both) / len(both) ** 0.5,
        }
    speeds = {(row["lag"], row["wait_s"]): row["steps_per_s"] for row in results["waiting"]}
    found["asynchronous_times_synchronous"] = {
        f"{1000 * wait:.0f} ms": speeds[1, wait] / speeds[0, wait] for lag, wait in speeds if lag == 0 and (1, wait) in speeds
    }
    return found


def plot(results: dict[str, Any], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axis, rows, title in (
        (left, results["long"], "lag 0 (synchronous) and 1"),
        (right, results["stale"], "lag 4 (dppo: also 0), by loss"),
    ):
        labels = sorted({(row["loss"], row["lag"]) for row in rows})
        for index, (loss, lag) in enumerate(labels):
            for row in rows:
                if (row["loss"], row["lag"]) == (loss, lag):
                    smooth = [mean(row["rewards"][max(0, at - 9) : at + 1]) for at in range(len(row["rewards"]))]
                    first = row["seed"] == min(other["seed"] for other in rows)
                    axis.plot(smooth, color=f"C{index}", linewidth=1, label=f"{loss}, lag {lag}" if first else None)
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.2)
        if rows:
            axis.legend(fontsize=8)
    left.set_ylabel("sampled reward, mean of 10 steps")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parts(seeds: int, long_steps: int, stale_steps: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What to run, the quickest answers first."""
    for wait_s in (0.3, 0.0):
        for lag in (0, 1):
            yield "waiting", {"loss": "dppo", "lag": lag, "steps": min(40, long_steps), "seed": 0, "rate": RATE, "wait_s": wait_s}
    for seed in range(min(seeds, 2)):
        for loss in LOSSES:
            yield "stale", {"loss": loss, "lag": 4, "steps": stale_steps, "seed": seed, "rate": STALE_RATE}
        yield "stale", {"loss": "dppo", "lag": 0, "steps": stale_steps, "seed": seed, "rate": STALE_RATE}
    for seed in range(seeds):
        for lag in (0, 1):
            yield "long", {"loss": "dppo", "lag": lag, "steps": long_steps, "seed": seed, "rate": RATE}


def main(
    *,
    small: Annotated[bool, typer.Option(help="A minute, to see that it works.")] = False,
    seeds: int = 3,
    long_steps: int = 60,
    stale_steps: int = 100,
    output: Path | None = None,
    plot_to: Annotated[Path | None, typer.Option("--plot")] = None,
    only: Annotated[str, typer.Option(help="One part: waiting, stale or long; the others stay as they are in the output.")] = "",
) -> None:
    """Three parts: losses at lag 4, asynchronous beside synchronous, 300 ms of waiting."""
    torch.set_num_threads(1)
    if small:
        seeds, long_steps, stale_steps = 1, 6, 6
    worker = Worker(TINY)
    kept = json.loads(output.read_text()) if only and output is not None and output.exists() else {}
    results: dict[str, Any] = {name: [] if name == only else kept.get(name, []) for name in ("stale", "long", "waiting")}
    now = circumstances()
    made = kept.get("made") or {name: {key: kept[key] for key in now if key in kept} for name in results if results[name]}
    results |= {
        **now,
        "made": {**made, **dict.fromkeys((only and [only]) or ("stale", "long", "waiting"), now)},
    }  # parts may be of different days
    starts = [warm(seed) for seed in range(seeds)]
    results["warm"] = [{"sampled": evaluate(worker, start, 1.0), "greedy": evaluate(worker, start, 0.0)} for start in starts]
    print(results["warm"], flush=True)
    for part, settings in parts(seeds, long_steps, stale_steps):
        if only not in ("", part):
            continue
        row = run(worker, starts[settings["seed"]], **settings)
        results[part].append(row)
        print(line(part, row), flush=True)
        results["conclusion"] = conclude(results)
        if output is not None:  # a run that is cut short has said something
            output.write_text(json.dumps(results, indent=1) + "\n")
    worker.close()
    print(json.dumps(results["conclusion"], indent=1))
    if plot_to is not None:
        plot(results, plot_to)


if __name__ == "__main__":
    typer.run(main)
