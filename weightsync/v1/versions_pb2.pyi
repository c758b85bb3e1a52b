from weightsync.v1 import version_pb2 as _version_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetVersionRequest(_message.Message):
    __slots__ = ("run", "version")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: int
    def __init__(self, run: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetVersionResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: _version_pb2.Version
    def __init__(self, version: _Optional[_Union[_version_pb2.Version, _Mapping]] = ...) -> None: ...

class ListVersionsRequest(_message.Message):
    __slots__ = ("run", "page_size", "page_token")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    run: str
    page_size: int
    page_token: str
    def __init__(self, run: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListVersionsResponse(_message.Message):
    __slots__ = ("versions", "next_page_token")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[CommittedVersion]
    next_page_token: str
    def __init__(self, versions: _Optional[_Iterable[_Union[CommittedVersion, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class CommittedVersion(_message.Message):
    __slots__ = ("version", "manifest", "sequence", "epoch", "who", "committed_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    manifest: _version_pb2.Ref
    sequence: int
    epoch: int
    who: str
    committed_ms: int
    def __init__(self, version: _Optional[int] = ..., manifest: _Optional[_Union[_version_pb2.Ref, _Mapping]] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., who: _Optional[str] = ..., committed_ms: _Optional[int] = ...) -> None: ...

class WatchVersionsRequest(_message.Message):
    __slots__ = ("run", "channel", "after_sequence")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    run: str
    channel: str
    after_sequence: int
    def __init__(self, run: _Optional[str] = ..., channel: _Optional[str] = ..., after_sequence: _Optional[int] = ...) -> None: ...

class WatchVersionsResponse(_message.Message):
    __slots__ = ("moved", "bookmark")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    BOOKMARK_FIELD_NUMBER: _ClassVar[int]
    moved: Moved
    bookmark: Bookmark
    def __init__(self, moved: _Optional[_Union[Moved, _Mapping]] = ..., bookmark: _Optional[_Union[Bookmark, _Mapping]] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("move", "move_digest")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    MOVE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    move: _version_pb2.Move
    move_digest: str
    def __init__(self, move: _Optional[_Union[_version_pb2.Move, _Mapping]] = ..., move_digest: _Optional[str] = ...) -> None: ...

class Bookmark(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class NotifyRequest(_message.Message):
    __slots__ = ("run", "channel")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    run: str
    channel: str
    def __init__(self, run: _Optional[str] = ..., channel: _Optional[str] = ...) -> None: ...

class NotifyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
