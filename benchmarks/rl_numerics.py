"""Engine and learner compute the same log-probabilities differently: how differently, what router replay does to it, what equality costs.

    python -m benchmarks.rl_numerics --output benchmarks/results/rl_numerics.json

The engine draws in bf16 with a cache, the learner reads whole rows in fp32 masters (or bf16, aligned). Equal weights on both sides: only
numerics differ.
"""

import json
import time
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.measure import circumstances
from weightsync.rl.advantages import grpo
from weightsync.rl.aligned import Reader
from weightsync.rl.batch import rows_of
from weightsync.rl.decoder import Decoder, Shape
from weightsync.rl.environments import open_environment
from weightsync.rl.imitation import examples
from weightsync.rl.learner import Learner, LearnerSettings
from weightsync.rl.mismatch import mismatch
from weightsync.rl.mlp import FREE, Routing
from weightsync.rl.records import Episode, Grade, Group, Outcome, Segment, Task
from weightsync.rl.sampler import Draw, Sampler
from weightsync.rl.text import encode

DENSE = Shape(vocabulary=128, width=128, layers=4, heads=4, kv_heads=4, head_width=32, mlp_width=256, context=64)
MIXTURE = Shape(vocabulary=128, width=96, layers=4, heads=4, kv_heads=4, head_width=24, mlp_width=48, context=64, experts=8)
ALIGNED_ROWS = 16


def draw(decoder: Decoder, prompts: int, samples: int, reader: Reader | None = None, seed: int = 5) -> tuple[list[Group], float]:
    """Groups of drawn answers with rewards that alternate (only their tokens matter here), and tokens drawn per CPU second."""
    environment, random = open_environment("sort"), np.random.default_rng(seed)
    sampler = Sampler(decoder, slots=256, reader=reader)
    draws = [
        [Draw(encode(environment.problem(seed * 10_000 + at).prompt).tolist(), random.random(7)) for _ in range(samples)]
        for at in range(prompts)
    ]
    for one in (one for row in draws for one in row):
        sampler.add(one)
    start = time.process_time()
    while sampler.busy:
        sampler.step(1)
    spent = time.process_time() - start
    groups = []
    for number, row in enumerate(draws):
        episodes = tuple(Episode(at, (segment(one),), Grade(Outcome.GRADED, float(at % 2))) for at, one in enumerate(row))
        groups.append(Group(Task(number, "sort", number, samples), episodes, "worker", "home"))
    return groups, sum(len(one.drawn) for row in draws for one in row) / spent


def segment(one: Draw) -> Segment:
    found, given = one.completion(), np.zeros(len(one.context))
    experts = None if found.experts is None else np.concatenate([found.context_experts, found.experts])
    return Segment(
        np.array([*one.context, *one.drawn], np.int32),
        np.arange(one.length) >= len(given),
        np.concatenate([given, found.logprobs]).astype(np.float32),
        np.concatenate([given, found.versions]).astype(np.int64),
        experts,
    )


def distance(learner: Learner, groups: list[Group]) -> dict[str, float]:
    """Mismatch between what the engine recorded and what the learner finds, before any update."""
    rows, _ = rows_of(groups, grpo)
    new = [own.numpy()[row.segment.made[1:]] for own, row in zip(learner.logprobs(rows), rows, strict=True)]
    old = [row.segment.logprobs[row.segment.made] for row in rows]
    found = mismatch(np.concatenate(new), np.concatenate(old))
    return {"k1": found.k1, "k3": found.k3, "max": found.largest, "out_of_band": found.out, "tokens": float(found.tokens)}


def learner_like(learner: Learner, **settings: Any) -> Learner:
    """Another with the weights of `learner`'s published policy, in fp32: so that only numerics differ."""
    other = Learner(LearnerSettings(shape=learner.settings.shape, **settings))
    held = learner.checkpoint()
    rounded = {f"masters.{name}": tensor.float() for name, tensor in learner.weights().items()}
    other.restore(type(held)(0, held.consumed, rounded, held.extra))
    return other


def flips(learner: Learner, groups: list[Group]) -> dict[str, float]:
    """How often the fp32 router chooses other experts than the bf16 engine did: by token and layer, and tokens with any."""
    masters, apart, tokens, layers = learner_like(learner)._masters, 0, 0, 0
    for part in (part for group in groups for episode in group.episodes for part in episode.segments):
        routing = Routing()
        with torch.no_grad():
            masters(torch.from_numpy(part.tokens[None]).long(), routing=routing)
        said, own = np.sort(part.experts, -1), np.sort(routing.chosen[0].numpy(), -1)
        known = (part.experts != FREE).all((1, 2))
        differ = (said != own).any(-1)[known]
        apart, layers, tokens = apart + int(differ.sum()), layers + differ.size, tokens + len(differ)
    return {"by_token_and_layer": apart / layers, "tokens": float(tokens)}


def step_s(learner: Learner, groups: list[Group]) -> float:
    """CPU seconds of a training step."""
    start = time.process_time()
    learner.consume(groups, version=1)
    return time.process_time() - start


def main(
    *,
    small: Annotated[bool, typer.Option(help="Seconds, to see that it works.")] = False,
    output: Path | None = None,
) -> None:
    """Dense and mixture; free and replayed routes; aligned."""
    torch.set_num_threads(1)
    prompts, samples, warm, seeds = (4, 4, 4, 1) if small else (96, 8, 50, 4)
    results: dict[str, Any] = {**circumstances(), "dense": [], "mixture": []}
    for name, shape, seed in ((name, shape, seed) for name, shape in (("dense", DENSE), ("mixture", MIXTURE)) for seed in range(seeds)):
        learner = Learner(LearnerSettings(shape=shape, seed=seed))
        learner.imitate(examples(open_environment("sort"), 64 * warm, spoiled=0.5, seed=seed))
        groups, speed = draw(learner.decoder, prompts, samples)
        row: dict[str, Any] = {
            "learner_fp32": distance(learner_like(learner, replay_routes=False), groups),
            "engine_tokens_per_cpu_s": speed,
        }
        if shape.experts:
            row["learner_fp32_replayed"] = distance(learner_like(learner), groups)
            row["k3_drop"] = row["learner_fp32"]["k3"] / row["learner_fp32_replayed"]["k3"]
            row["routes_apart"] = flips(learner, groups)
        row["step_cpu_s"] = step_s(learner_like(learner), groups)
        reader = Reader(ALIGNED_ROWS)
        same, slow = draw(learner.decoder, prompts, samples, reader)
        row["aligned"] = distance(learner_like(learner, aligned_rows=ALIGNED_ROWS), same)
        row["aligned_engine_tokens_per_cpu_s"] = slow
        row["aligned_step_cpu_s"] = step_s(learner_like(learner, aligned_rows=ALIGNED_ROWS), same)
        row["aligned_price"] = {"engine": speed / slow, "learner": row["aligned_step_cpu_s"] / row["step_cpu_s"]}
        results[name].append(row)
        print(name, seed, json.dumps(row), flush=True)
    results["conclusion"] = concluded(results)
    text = json.dumps(results, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(json.dumps(results["conclusion"], indent=1))


def concluded(results: dict[str, Any]) -> dict[str, float]:
    """Means over the seeds; a few tokens that took other experts make most of a free k3, so it varies much."""
    mixture, every = results["mixture"], [*results["dense"], *results["mixture"]]
    free, replayed = (mean(row[name]["k3"] for row in mixture) for name in ("learner_fp32", "learner_fp32_replayed"))
    return {
        "k3_dense": mean(row["learner_fp32"]["k3"] for row in results["dense"]),
        "k3_mixture_free": free,
        "k3_mixture_replayed": replayed,
        "k3_drop": free / replayed,
        "largest_free": max(row["learner_fp32"]["max"] for row in mixture),
        "largest_replayed": max(row["learner_fp32_replayed"]["max"] for row in mixture),
        "largest_aligned": max(row["aligned"]["max"] for row in every),
        "aligned_engine_price": mean(row["aligned_price"]["engine"] for row in results["dense"]),
        "aligned_learner_price": mean(row["aligned_price"]["learner"] for row in results["dense"]),
    }


if __name__ == "__main__":
    typer.run(main)
