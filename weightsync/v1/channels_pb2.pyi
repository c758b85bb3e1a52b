from weightsync.v1 import version_pb2 as _version_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetChannelRequest(_message.Message):
    __slots__ = ("run", "channel")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    run: str
    channel: str
    def __init__(self, run: _Optional[str] = ..., channel: _Optional[str] = ...) -> None: ...

class GetChannelResponse(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: _version_pb2.Channel
    def __init__(self, channel: _Optional[_Union[_version_pb2.Channel, _Mapping]] = ...) -> None: ...

class ListChannelsRequest(_message.Message):
    __slots__ = ("run", "page_size", "page_token")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    run: str
    page_size: int
    page_token: str
    def __init__(self, run: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListChannelsResponse(_message.Message):
    __slots__ = ("channels", "next_page_token")
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[_version_pb2.Channel]
    next_page_token: str
    def __init__(self, channels: _Optional[_Iterable[_Union[_version_pb2.Channel, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class MoveChannelRequest(_message.Message):
    __slots__ = ("run", "channel", "record", "expected_sequence")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    run: str
    channel: str
    record: bytes
    expected_sequence: int
    def __init__(self, run: _Optional[str] = ..., channel: _Optional[str] = ..., record: _Optional[bytes] = ..., expected_sequence: _Optional[int] = ...) -> None: ...

class MoveChannelResponse(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: _version_pb2.Channel
    def __init__(self, channel: _Optional[_Union[_version_pb2.Channel, _Mapping]] = ...) -> None: ...

class ChannelHistoryRequest(_message.Message):
    __slots__ = ("run", "channel", "page_size", "page_token")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    run: str
    channel: str
    page_size: int
    page_token: str
    def __init__(self, run: _Optional[str] = ..., channel: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ChannelHistoryResponse(_message.Message):
    __slots__ = ("moves", "next_page_token")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[PastMove]
    next_page_token: str
    def __init__(self, moves: _Optional[_Iterable[_Union[PastMove, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PastMove(_message.Message):
    __slots__ = ("move", "move_digest")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    MOVE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    move: _version_pb2.Move
    move_digest: str
    def __init__(self, move: _Optional[_Union[_version_pb2.Move, _Mapping]] = ..., move_digest: _Optional[str] = ...) -> None: ...
