from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Stage(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STAGE_UNSPECIFIED: _ClassVar[Stage]
    STAGE_IDLE: _ClassVar[Stage]
    STAGE_FETCH: _ClassVar[Stage]
    STAGE_DECODE: _ClassVar[Stage]
    STAGE_PREPARE: _ClassVar[Stage]
    STAGE_APPLY: _ClassVar[Stage]
    STAGE_STALE: _ClassVar[Stage]
    STAGE_FAILED: _ClassVar[Stage]
STAGE_UNSPECIFIED: Stage
STAGE_IDLE: Stage
STAGE_FETCH: Stage
STAGE_DECODE: Stage
STAGE_PREPARE: Stage
STAGE_APPLY: Stage
STAGE_STALE: Stage
STAGE_FAILED: Stage

class SubscriberReport(_message.Message):
    __slots__ = ("held_version", "served_version", "sequence", "stage", "fetched_bytes", "last_update", "error_kind", "error")
    HELD_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVED_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_KIND_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    held_version: int
    served_version: int
    sequence: int
    stage: Stage
    fetched_bytes: int
    last_update: UpdateTimings
    error_kind: str
    error: str
    def __init__(self, held_version: _Optional[int] = ..., served_version: _Optional[int] = ..., sequence: _Optional[int] = ..., stage: _Optional[_Union[Stage, str]] = ..., fetched_bytes: _Optional[int] = ..., last_update: _Optional[_Union[UpdateTimings, _Mapping]] = ..., error_kind: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class UpdateTimings(_message.Message):
    __slots__ = ("version", "fetched_bytes", "lag_us", "fetch_us", "decode_us", "stage_us", "pause_us", "verify_us")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FETCHED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_US_FIELD_NUMBER: _ClassVar[int]
    FETCH_US_FIELD_NUMBER: _ClassVar[int]
    DECODE_US_FIELD_NUMBER: _ClassVar[int]
    STAGE_US_FIELD_NUMBER: _ClassVar[int]
    PAUSE_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    version: int
    fetched_bytes: int
    lag_us: int
    fetch_us: int
    decode_us: int
    stage_us: int
    pause_us: int
    verify_us: int
    def __init__(self, version: _Optional[int] = ..., fetched_bytes: _Optional[int] = ..., lag_us: _Optional[int] = ..., fetch_us: _Optional[int] = ..., decode_us: _Optional[int] = ..., stage_us: _Optional[int] = ..., pause_us: _Optional[int] = ..., verify_us: _Optional[int] = ...) -> None: ...

class Subscriber(_message.Message):
    __slots__ = ("name", "region", "engine", "channel", "report", "registered_ms", "seen_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_MS_FIELD_NUMBER: _ClassVar[int]
    SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    region: str
    engine: str
    channel: str
    report: SubscriberReport
    registered_ms: int
    seen_ms: int
    def __init__(self, name: _Optional[str] = ..., region: _Optional[str] = ..., engine: _Optional[str] = ..., channel: _Optional[str] = ..., report: _Optional[_Union[SubscriberReport, _Mapping]] = ..., registered_ms: _Optional[int] = ..., seen_ms: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("run", "subscriber", "region", "engine", "channel")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    run: str
    subscriber: str
    region: str
    engine: str
    channel: str
    def __init__(self, run: _Optional[str] = ..., subscriber: _Optional[str] = ..., region: _Optional[str] = ..., engine: _Optional[str] = ..., channel: _Optional[str] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("report_interval_ms", "forget_after_ms")
    REPORT_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    FORGET_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    report_interval_ms: int
    forget_after_ms: int
    def __init__(self, report_interval_ms: _Optional[int] = ..., forget_after_ms: _Optional[int] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("run", "subscriber", "report")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    run: str
    subscriber: str
    report: SubscriberReport
    def __init__(self, run: _Optional[str] = ..., subscriber: _Optional[str] = ..., report: _Optional[_Union[SubscriberReport, _Mapping]] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSubscribersRequest(_message.Message):
    __slots__ = ("run", "region", "page_size", "page_token")
    RUN_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    run: str
    region: str
    page_size: int
    page_token: str
    def __init__(self, run: _Optional[str] = ..., region: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSubscribersResponse(_message.Message):
    __slots__ = ("subscribers", "next_page_token")
    SUBSCRIBERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    subscribers: _containers.RepeatedCompositeFieldContainer[Subscriber]
    next_page_token: str
    def __init__(self, subscribers: _Optional[_Iterable[_Union[Subscriber, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchFleetRequest(_message.Message):
    __slots__ = ("run",)
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class WatchFleetResponse(_message.Message):
    __slots__ = ("reset", "changed", "gone", "complete")
    RESET_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    reset: bool
    changed: _containers.RepeatedCompositeFieldContainer[Subscriber]
    gone: _containers.RepeatedScalarFieldContainer[str]
    complete: bool
    def __init__(self, reset: bool = ..., changed: _Optional[_Iterable[_Union[Subscriber, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ..., complete: bool = ...) -> None: ...
