"""Tasks and groups as messages and back. What a message says of itself is checked before it is believed."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Corrupt
from weightsync.rl.checkpoint import Numbers
from weightsync.rl.records import Episode, Grade, Group, Outcome, Segment, Task
from weightsync.rl_v1 import loop_pb2 as pb


def task_to(task: Task) -> pb.Task:
    """As a message."""
    return pb.Task(number=task.number, environment=task.environment, seed=task.seed, samples=task.samples)


def task_from(message: pb.Task) -> Task:
    """From a message."""
    return Task(message.number, message.environment, message.seed, message.samples)


def group_to(group: Group) -> pb.Group:
    """As a message."""
    episodes = [_episode_to(one) for one in group.episodes]
    return pb.Group(task=task_to(group.task), episodes=episodes, worker=group.worker, region=group.region, made_s=group.made_s)


def group_from(message: pb.Group) -> Group:
    """From a message. Raises `Corrupt` where it contradicts itself."""
    episodes = tuple(_episode_from(one) for one in message.episodes)
    if [one.sample for one in episodes] != list(range(len(episodes))):
        raise Corrupt(f"the episodes of task {message.task.number} are not numbered from 0")
    return Group(task_from(message.task), episodes, message.worker, message.region, message.made_s)


def ranges_to(numbers: Numbers) -> list[pb.Range]:
    """As messages."""
    return [pb.Range(first=first, stop=stop) for first, stop in numbers.ranges]


def ranges_from(messages: Iterable[pb.Range]) -> Numbers:
    """From messages. Raises `Corrupt` unless they ascend and lie apart."""
    ranges = [(one.first, one.stop) for one in messages]
    flat = [number for pair in ranges for number in pair]
    if flat != sorted(set(flat)):
        raise Corrupt("ranges of task numbers overlap, or do not ascend")
    return Numbers(ranges)


def _episode_to(one: Episode) -> pb.Episode:
    grade = one.grade
    return pb.Episode(
        sample=one.sample,
        segments=[_segment_to(part) for part in one.segments],
        outcome=grade.outcome.value,
        reward=grade.reward,
        scores=dict(grade.scores),
        why=grade.why[:1024],
        seconds=one.seconds,
    )


def _episode_from(message: pb.Episode) -> Episode:
    try:
        outcome = Outcome(message.outcome)
    except ValueError:
        raise Corrupt(f"an episode has the outcome {message.outcome!r}") from None
    if not np.isfinite(message.reward) or (outcome is not Outcome.GRADED and message.reward != 0):
        raise Corrupt(f"an episode that is {outcome.value} has the reward {message.reward}")
    grade = Grade(outcome, message.reward, dict(message.scores), message.why)
    return Episode(message.sample, tuple(_segment_from(part) for part in message.segments), grade, message.seconds)


def _segment_to(part: Segment) -> pb.Segment:
    message = pb.Segment(
        tokens=part.tokens.astype("<i4").tobytes(),
        made=part.made.astype(np.uint8).tobytes(),
        logprobs=part.logprobs.astype("<f4").tobytes(),
        versions=part.versions.astype("<i8").tobytes(),
    )
    if part.experts is not None:
        message.experts = part.experts.tobytes()
        message.expert_shape.extend(part.experts.shape[1:])
    return message


def _segment_from(message: pb.Segment) -> Segment:
    tokens = _array(message.tokens, "<i4").astype(np.int32)
    made = _array(message.made, "u1")
    logprobs, versions = _array(message.logprobs, "<f4").astype(np.float32), _array(message.versions, "<i8").astype(np.int64)
    if not len(tokens) == len(made) == len(logprobs) == len(versions) or (made > 1).any():
        raise Corrupt("the arrays of a segment do not have one row per token")
    if not np.isfinite(logprobs).all() or (versions[made.astype(bool)] < 1).any():
        raise Corrupt("a token that was drawn has no version, or its log-probability is no number")
    experts = None
    if message.expert_shape:
        shape = (len(tokens), *message.expert_shape)
        if len(shape) != 3 or len(message.experts) != int(np.prod(shape)):
            raise Corrupt("the routed experts of a segment do not fit its tokens")
        experts = _array(message.experts, "u1").reshape(shape)
    return Segment(tokens, made.astype(np.bool_), logprobs, versions, experts)


def _array(data: bytes, kind: str) -> NDArray[Any]:
    if len(data) % np.dtype(kind).itemsize:
        raise Corrupt("an array of a segment is cut")
    return np.frombuffer(data, kind).copy()
