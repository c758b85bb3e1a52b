from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Range(_message.Message):
    __slots__ = ("first", "stop")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    first: int
    stop: int
    def __init__(self, first: _Optional[int] = ..., stop: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("number", "environment", "seed", "samples")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    number: int
    environment: str
    seed: int
    samples: int
    def __init__(self, number: _Optional[int] = ..., environment: _Optional[str] = ..., seed: _Optional[int] = ..., samples: _Optional[int] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("tokens", "made", "logprobs", "versions", "experts", "expert_shape")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MADE_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    EXPERT_SHAPE_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    made: bytes
    logprobs: bytes
    versions: bytes
    experts: bytes
    expert_shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[bytes] = ..., made: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., versions: _Optional[bytes] = ..., experts: _Optional[bytes] = ..., expert_shape: _Optional[_Iterable[int]] = ...) -> None: ...

class Episode(_message.Message):
    __slots__ = ("sample", "segments", "outcome", "reward", "scores", "why", "seconds")
    class ScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    sample: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    outcome: str
    reward: float
    scores: _containers.ScalarMap[str, float]
    why: str
    seconds: float
    def __init__(self, sample: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., outcome: _Optional[str] = ..., reward: _Optional[float] = ..., scores: _Optional[_Mapping[str, float]] = ..., why: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("task", "episodes", "worker", "region", "made_s")
    TASK_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    MADE_S_FIELD_NUMBER: _ClassVar[int]
    task: Task
    episodes: _containers.RepeatedCompositeFieldContainer[Episode]
    worker: str
    region: str
    made_s: float
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., episodes: _Optional[_Iterable[_Union[Episode, _Mapping]]] = ..., worker: _Optional[str] = ..., region: _Optional[str] = ..., made_s: _Optional[float] = ...) -> None: ...

class BeginRequest(_message.Message):
    __slots__ = ("consumed", "step", "version")
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    consumed: _containers.RepeatedCompositeFieldContainer[Range]
    step: int
    version: int
    def __init__(self, consumed: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., step: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class BeginResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("worker", "region", "version", "working_on", "wants", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKING_ON_FIELD_NUMBER: _ClassVar[int]
    WANTS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    region: str
    version: int
    working_on: _containers.RepeatedScalarFieldContainer[int]
    wants: bool
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, worker: _Optional[str] = ..., region: _Optional[str] = ..., version: _Optional[int] = ..., working_on: _Optional[_Iterable[int]] = ..., wants: bool = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("task", "give_up", "why")
    TASK_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    task: Task
    give_up: _containers.RepeatedScalarFieldContainer[int]
    why: str
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., give_up: _Optional[_Iterable[int]] = ..., why: _Optional[str] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: Group
    def __init__(self, group: _Optional[_Union[Group, _Mapping]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class TakeRequest(_message.Message):
    __slots__ = ("version", "wait_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    version: int
    wait_s: float
    def __init__(self, version: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class TakeResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class ConfirmRequest(_message.Message):
    __slots__ = ("consumed", "step", "version", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    consumed: _containers.RepeatedCompositeFieldContainer[Range]
    step: int
    version: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, consumed: _Optional[_Iterable[_Union[Range, _Mapping]]] = ..., step: _Optional[int] = ..., version: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class ConfirmResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegionStatus(_message.Message):
    __slots__ = ("region", "groups", "lag_max_versions", "lag_max_s", "lag_mean_versions")
    REGION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LAG_MAX_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    LAG_MAX_S_FIELD_NUMBER: _ClassVar[int]
    LAG_MEAN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    region: str
    groups: int
    lag_max_versions: int
    lag_max_s: float
    lag_mean_versions: float
    def __init__(self, region: _Optional[str] = ..., groups: _Optional[int] = ..., lag_max_versions: _Optional[int] = ..., lag_max_s: _Optional[float] = ..., lag_mean_versions: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "region", "version", "working_on", "silent_s", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKING_ON_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    worker: str
    region: str
    version: int
    working_on: int
    silent_s: float
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, worker: _Optional[str] = ..., region: _Optional[str] = ..., version: _Optional[int] = ..., working_on: _Optional[int] = ..., silent_s: _Optional[float] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("step", "version", "consumed", "queued", "leased", "stale", "duplicates", "expired", "regions", "workers", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    step: int
    version: int
    consumed: int
    queued: int
    leased: int
    stale: int
    duplicates: int
    expired: int
    regions: _containers.RepeatedCompositeFieldContainer[RegionStatus]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, step: _Optional[int] = ..., version: _Optional[int] = ..., consumed: _Optional[int] = ..., queued: _Optional[int] = ..., leased: _Optional[int] = ..., stale: _Optional[int] = ..., duplicates: _Optional[int] = ..., expired: _Optional[int] = ..., regions: _Optional[_Iterable[_Union[RegionStatus, _Mapping]]] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...
