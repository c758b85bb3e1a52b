"""Complete records of steps: every token, version, reward, advantage and metric, in one file a step; and doing a step again from them.

    HOME/step-00000012.safetensors     arrays over all tokens of all segments, and one JSON record in the metadata

What can be checked: the file is written again to the byte; advantages come out of the rewards to the bit; the loss comes out of the
recorded log-probabilities. With the trainer's checkpoint of the step before, the whole step is done again, and every number must be equal.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from weightsync.clock import new_write_id
from weightsync.errors import Corrupt, NotFound, Unsupported
from weightsync.rl.advantages import grpo
from weightsync.rl.batch import rows_of
from weightsync.rl.checkpoint import Checkpoint
from weightsync.rl.decoder import Shape
from weightsync.rl.learner import Learner, LearnerSettings
from weightsync.rl.losses import loss_named
from weightsync.rl.metrics import Step, Trained
from weightsync.rl.mismatch import Mismatch
from weightsync.rl.records import Episode, Grade, Group, Outcome, Segment, Task

FORMAT = 1
LOSS_TOLERANCE = 1e-4  # of recomputing a mean over the same numbers in another order
_PARTS: Mapping[str, type[np.generic]] = {"tokens": np.int32, "made": np.bool_, "logprobs": np.float32, "versions": np.int64}


@dataclass(frozen=True)
class Check:
    """One thing that was done again. `holds` None: it could not be, and `found` says why."""

    what: str
    holds: bool | None
    found: str = ""


def dump(step: Step, settings: LearnerSettings) -> bytes:
    """The record of a step that `settings` made."""
    segments = [(place, part) for place, part in _segments(step.groups)]
    trained = {one.place: one for one in step.trained}
    arrays: dict[str, NDArray[Any]] = {name: _joined([getattr(part, name) for _, part in segments], kind) for name, kind in _PARTS.items()}
    arrays["lengths"] = np.array([len(part.tokens) for _, part in segments], np.int64)
    arrays["places"] = np.array([place for place, _ in segments], np.int64).reshape(-1, 3)
    arrays["trained"] = np.array([place in trained for place, _ in segments], np.bool_)
    for name in ("advantages", "learner_logprobs"):
        own = [getattr(trained[place], name.removeprefix("learner_")) for place, _ in segments if place in trained]
        arrays[name] = _joined(own, np.float32)
    routed = [part.experts for _, part in segments if part.experts is not None]
    arrays["routed"] = np.array([part.experts is not None for _, part in segments], np.bool_)
    arrays["experts"] = np.concatenate(routed) if routed else np.zeros((0, 0, 0), np.uint8)
    return save(arrays, {"record": json.dumps(_said(step, settings), sort_keys=True, separators=(",", ":"))})


def load(path: Path) -> tuple[Step, LearnerSettings]:
    """What `dump` wrote. Raises `NotFound`, or `Corrupt` where it contradicts itself."""
    try:
        with safe_open(path, "numpy") as file:
            said = json.loads((file.metadata() or {})["record"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no mapping
        if said["format"] != FORMAT:
            raise Unsupported(f"{path} has format {said['format']}", remedy="replay it with the release that wrote it")
        return _step(said, arrays), _settings(said["settings"])
    except FileNotFoundError as error:
        raise NotFound(f"there is no record {path}") from error
    except (SafetensorError, KeyError, ValueError, TypeError, IndexError, OSError) as error:
        raise Corrupt(f"{path} is no record of a step: {error}", remedy="dump it again, or take another step") from error


def place_of(home: Path, step: int) -> Path:
    """Where the record of a step is, or would be."""
    return home / f"step-{step:08d}.safetensors"


def keep(home: Path, step: Step, settings: LearnerSettings) -> Path:
    """Writes the record of a step under `home`; it appears whole, in place of an older one."""
    home.mkdir(parents=True, exist_ok=True)
    path = place_of(home, step.step)
    partial = home / f".{path.name}.{new_write_id()}"
    partial.write_bytes(dump(step, settings))
    partial.rename(path)
    return path


def replay(path: Path, before: Checkpoint | None = None, after: Checkpoint | None = None) -> list[Check]:
    """Does the step of a record again. `before`, `after`: the trainer's checkpoints of the step before and of this one."""
    step, settings = load(path)
    checks = [Check("the record is written again to the byte", dump(step, settings) == path.read_bytes())]
    checks.append(_credit_again(step, settings))
    checks.append(_loss_again(step, settings))
    if before is None:
        return [*checks, Check("the step is done again", None, "give the checkpoint of the step before")]
    if before.step != step.step - 1:
        return [*checks, Check("the step is done again", False, f"the checkpoint is of step {before.step}, not {step.step - 1}")]
    learner = Learner(settings)
    learner.restore(before)
    again = learner.consume(step.groups, version=step.version)
    checks.append(Check("the step is done again, every number equal", dump(again, settings) == dump(step, settings)))
    if after is not None:
        held = learner.checkpoint().tensors
        same = held.keys() == after.tensors.keys() and all(torch.equal(held[name], after.tensors[name]) for name in held)
        checks.append(Check("its weights and its optimizer are those of the next checkpoint", same))
    return checks


def _credit_again(step: Step, settings: LearnerSettings) -> Check:
    what = "advantages come out of the rewards"
    if settings.credit is not grpo:
        return Check(what, None, "they were credited by a function that is not known here")
    rows, _ = rows_of(step.groups, grpo)
    same = [row.place for row in rows] == [one.place for one in step.trained] and all(
        np.array_equal(row.advantages, one.advantages) for row, one in zip(rows, step.trained, strict=True)
    )
    return Check(what, same)


def _loss_again(step: Step, settings: LearnerSettings) -> Check:
    what = "the loss comes out of the log-probabilities"
    if settings.minibatches > 1:
        return Check(what, None, "several updates were made; only doing the step again tells")
    parts = dict(_segments(step.groups))
    drawn = [(parts[one.place].made[1:], one, parts[one.place]) for one in step.trained]
    new, old, credit = (
        torch.from_numpy(_joined([values[1:][made] for made, values in pairs], np.float32))
        for pairs in (
            [(made, one.logprobs) for made, one, _ in drawn],
            [(made, part.logprobs) for made, _, part in drawn],
            [(made, one.advantages) for made, one, _ in drawn],
        )
    )
    loss = float(loss_named(settings.loss)(new, old, credit, new).double().mean()) if len(new) else 0.0
    said = step.metrics["loss"]
    size = float(credit.abs().mean()) if len(new) else 1.0
    return Check(what, abs(loss - said) <= LOSS_TOLERANCE * max(size, abs(said)), f"{loss:.6g}, recorded {said:.6g}")


def _segments(groups: tuple[Group, ...]) -> list[tuple[tuple[int, int, int], Segment]]:
    return [
        ((number, at, part), segment)
        for number, group in enumerate(groups)
        for at, episode in enumerate(group.episodes)
        for part, segment in enumerate(episode.segments)
    ]


def _joined(arrays: list[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *arrays]).astype(kind, copy=False)


def _said(step: Step, settings: LearnerSettings) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "step": step.step,
        "version": step.version,
        "metrics": dict(step.metrics),
        "mismatch": [{"region": region, "version": version, **asdict(one)} for (region, version), one in step.mismatch.items()],
        "groups": [
            {
                "task": asdict(group.task),
                "worker": group.worker,
                "region": group.region,
                "made_s": group.made_s,
                "episodes": [
                    {"sample": one.sample, "seconds": one.seconds, "grade": {**asdict(one.grade), "scores": dict(one.grade.scores)}}
                    for one in group.episodes
                ],
            }
            for group in step.groups
        ],
        "settings": {
            **{field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in ("shape", "credit")},
            "shape": asdict(settings.shape),
            "credit": "grpo" if settings.credit is grpo else "another",
        },
    }


def _settings(said: Mapping[str, Any]) -> LearnerSettings:
    values = {key: value for key, value in said.items() if key not in ("shape", "credit")}
    found = LearnerSettings(**{**values, "betas": tuple(values["betas"]), "shape": Shape(**said["shape"])})
    return found if said["credit"] == "grpo" else replace(found, credit=lambda _: None)


def _step(said: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Step:
    places = [tuple(place) for place in arrays["places"].tolist()]
    lengths, routed, learnt = arrays["lengths"], arrays["routed"], arrays["trained"]
    tokens, made, logprobs, versions = (_split(arrays[name], lengths) for name in _PARTS)
    experts = iter(_split(arrays["experts"], lengths[routed]))
    parts = {
        place: Segment(tokens[at], made[at], logprobs[at], versions[at], next(experts) if routed[at] else None)
        for at, place in enumerate(places)
    }
    groups = tuple(_group(number, one, parts) for number, one in enumerate(said["groups"]))
    if [place for place, _ in _segments(groups)] != places:
        raise ValueError("its segments are not those of its episodes")
    own = zip(_split(arrays["advantages"], lengths[learnt]), _split(arrays["learner_logprobs"], lengths[learnt]), strict=True)
    trained = tuple(Trained(place, *next(own)) for place, one in zip(places, learnt.tolist(), strict=True) if one)
    apart = {
        (one["region"], one["version"]): Mismatch(**{key: value for key, value in one.items() if key not in ("region", "version")})
        for one in said["mismatch"]
    }
    return Step(said["step"], said["version"], groups, trained, said["metrics"], apart)


def _group(number: int, said: Mapping[str, Any], parts: Mapping[Any, Segment]) -> Group:
    held: dict[int, list[Segment]] = {}
    for (group, episode, _), segment in parts.items():
        if group == number:
            held.setdefault(episode, []).append(segment)
    episodes = tuple(
        Episode(
            one["sample"],
            tuple(held.get(at, ())),
            Grade(**{**one["grade"], "outcome": Outcome(one["grade"]["outcome"])}),
            one["seconds"],
        )
        for at, one in enumerate(said["episodes"])
    )
    return Group(Task(**said["task"]), episodes, said["worker"], said["region"], said["made_s"])


def _split(array: NDArray[Any], lengths: NDArray[np.int64]) -> list[NDArray[Any]]:
    if len(array) != int(lengths.sum()) or (lengths < 0).any():
        raise ValueError("its arrays are of different lengths")
    return np.split(array, np.cumsum(lengths)[:-1]) if len(lengths) else []
