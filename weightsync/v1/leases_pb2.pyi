from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lease(_message.Message):
    __slots__ = ("holder", "version", "expires_ms")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    holder: str
    version: int
    expires_ms: int
    def __init__(self, holder: _Optional[str] = ..., version: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("run", "holder", "version", "ttl_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    holder: str
    version: int
    ttl_ms: int
    def __init__(self, run: _Optional[str] = ..., holder: _Optional[str] = ..., version: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("run", "holder", "version", "ttl_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    holder: str
    version: int
    ttl_ms: int
    def __init__(self, run: _Optional[str] = ..., holder: _Optional[str] = ..., version: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("run", "holder", "version")
    RUN_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    run: str
    holder: str
    version: int
    def __init__(self, run: _Optional[str] = ..., holder: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
