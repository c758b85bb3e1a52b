"""A step's record for people and for scripts."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from weightsync.rl.metrics import Step
from weightsync.rl.text import VOCABULARY


def described(step: Step, *, whole: bool) -> dict[str, Any]:
    """JSON of a step; `whole`: with every token."""
    found: dict[str, Any] = {
        "step": step.step,
        "version": step.version,
        "metrics": dict(step.metrics),
        "mismatch": [{"region": region, "version": version, **asdict(one)} for (region, version), one in step.mismatch.items()],
    }
    if whole:
        credit = {one.place: one for one in step.trained}
        found["groups"] = [
            {
                "task": asdict(group.task),
                "region": group.region,
                "worker": group.worker,
                "episodes": [
                    {
                        "outcome": one.grade.outcome.value,
                        "reward": one.grade.reward,
                        "scores": dict(one.grade.scores),
                        "why": one.grade.why,
                        "segments": [
                            {
                                **{name: getattr(part, name).tolist() for name in ("tokens", "made", "logprobs", "versions")},
                                "advantages": credit[number, at, place].advantages.tolist() if (number, at, place) in credit else None,
                            }
                            for place, part in enumerate(one.segments)
                        ],
                    }
                    for at, one in enumerate(group.episodes)
                ],
            }
            for number, group in enumerate(step.groups)
        ]
    return found


def lines(step: Step, *, whole: bool) -> Iterator[str]:
    """The same for people; tokens as text, what the policy drew in brackets."""
    yield f"step {step.step}, began with version {step.version}"
    for name, value in step.metrics.items():
        yield f"  {name:<22} {value:.6g}"
    for (region, version), one in step.mismatch.items():
        yield f"  {region}, version {version}: {one.tokens} tokens, k1 {one.k1:.2e}, k3 {one.k3:.2e}, out of band {one.out:.2%}"
    if not whole:
        return
    for group in step.groups:
        yield f"task {group.task.number} ({group.task.environment}), {group.region}, {group.worker}"
        for episode in group.episodes:
            said = " | ".join(_text(part.tokens.tolist(), part.made.tolist()) for part in episode.segments)
            yield f"  {episode.grade.outcome.value} {episode.grade.reward:.3g}  {said}"


def _text(tokens: list[int], made: list[bool]) -> str:
    found, inside = [], False
    for token, own in zip(tokens, made, strict=True):
        if own is not inside:
            found.append("[" if own else "]")
            inside = own
        found.append(chr(token) if 31 < token < VOCABULARY - 1 else f"<{token}>")
    return "".join(found) + ("]" if inside else "")
