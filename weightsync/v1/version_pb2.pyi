from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ref(_message.Message):
    __slots__ = ("digest", "nbytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    NBYTES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    nbytes: int
    def __init__(self, digest: _Optional[str] = ..., nbytes: _Optional[int] = ...) -> None: ...

class VersionRef(_message.Message):
    __slots__ = ("version", "manifest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    version: int
    manifest: str
    def __init__(self, version: _Optional[int] = ..., manifest: _Optional[str] = ...) -> None: ...

class Version(_message.Message):
    __slots__ = ("run", "version", "manifest", "parent", "epoch", "writer", "base", "step", "layout", "root", "digests", "files", "checkpoint_bytes", "payload_bytes", "changed_lanes", "created_ms", "note")
    RUN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHANGED_LANES_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    run: str
    version: int
    manifest: Ref
    parent: VersionRef
    epoch: int
    writer: str
    base: int
    step: int
    layout: Ref
    root: str
    digests: Ref
    files: Ref
    checkpoint_bytes: int
    payload_bytes: int
    changed_lanes: int
    created_ms: int
    note: str
    def __init__(self, run: _Optional[str] = ..., version: _Optional[int] = ..., manifest: _Optional[_Union[Ref, _Mapping]] = ..., parent: _Optional[_Union[VersionRef, _Mapping]] = ..., epoch: _Optional[int] = ..., writer: _Optional[str] = ..., base: _Optional[int] = ..., step: _Optional[int] = ..., layout: _Optional[_Union[Ref, _Mapping]] = ..., root: _Optional[str] = ..., digests: _Optional[_Union[Ref, _Mapping]] = ..., files: _Optional[_Union[Ref, _Mapping]] = ..., checkpoint_bytes: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., changed_lanes: _Optional[int] = ..., created_ms: _Optional[int] = ..., note: _Optional[str] = ...) -> None: ...

class MoveRef(_message.Message):
    __slots__ = ("sequence", "write_id", "digest")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    write_id: str
    digest: str
    def __init__(self, sequence: _Optional[int] = ..., write_id: _Optional[str] = ..., digest: _Optional[str] = ...) -> None: ...

class Move(_message.Message):
    __slots__ = ("run", "channel", "sequence", "epoch", "version", "highest", "manifest", "previous", "write_id", "who", "why", "created_ms", "expires_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    channel: str
    sequence: int
    epoch: int
    version: int
    highest: int
    manifest: Ref
    previous: MoveRef
    write_id: str
    who: str
    why: str
    created_ms: int
    expires_ms: int
    def __init__(self, run: _Optional[str] = ..., channel: _Optional[str] = ..., sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., version: _Optional[int] = ..., highest: _Optional[int] = ..., manifest: _Optional[_Union[Ref, _Mapping]] = ..., previous: _Optional[_Union[MoveRef, _Mapping]] = ..., write_id: _Optional[str] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("run", "move", "renewal", "expires_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    move: str
    renewal: int
    expires_ms: int
    def __init__(self, run: _Optional[str] = ..., move: _Optional[str] = ..., renewal: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class Channel(_message.Message):
    __slots__ = ("move", "move_digest", "renewal")
    MOVE_FIELD_NUMBER: _ClassVar[int]
    MOVE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    move: Move
    move_digest: str
    renewal: Renewal
    def __init__(self, move: _Optional[_Union[Move, _Mapping]] = ..., move_digest: _Optional[str] = ..., renewal: _Optional[_Union[Renewal, _Mapping]] = ...) -> None: ...
