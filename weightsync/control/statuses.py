"""Errors to gRPC statuses and back by one table; the kind in the detail tells apart those that share INTERNAL."""

from typing import Any

import grpc
from google.protobuf.message import DecodeError

from weightsync.control.settings import MAX_TEXT
from weightsync.errors import (
    AlreadyExists,
    Compacted,
    Conflict,
    Corrupt,
    Denied,
    Dirty,
    Fenced,
    Invalid,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    Unauthenticated,
    Unavailable,
    Unsupported,
    WeightsyncError,
)
from weightsync.format.refs import VersionRef
from weightsync.telemetry import redact
from weightsync.v1 import errors_pb2 as pb
from weightsync.v1 import version_pb2

DETAILS = "grpc-status-details-bin"
_TYPE_URL = "type.googleapis.com/weightsync.v1.ErrorDetail"

Code = grpc.StatusCode
STATUSES: dict[type[WeightsyncError], grpc.StatusCode] = {
    Unavailable: Code.UNAVAILABLE,
    OutcomeUnknown: Code.UNKNOWN,
    Denied: Code.PERMISSION_DENIED,
    Unauthenticated: Code.UNAUTHENTICATED,
    NoSpace: Code.RESOURCE_EXHAUSTED,
    Conflict: Code.ABORTED,
    AlreadyExists: Code.ALREADY_EXISTS,
    Fenced: Code.FAILED_PRECONDITION,
    Corrupt: Code.DATA_LOSS,
    Compacted: Code.OUT_OF_RANGE,
    NotFound: Code.NOT_FOUND,
    Invalid: Code.INVALID_ARGUMENT,
    Unsupported: Code.UNIMPLEMENTED,
    Dirty: Code.INTERNAL,
    WeightsyncError: Code.INTERNAL,
}
_KINDS = {kind.kind: kind for kind in STATUSES}

# Statuses that gRPC itself raises, without a detail of ours.
_BARE: dict[grpc.StatusCode, type[WeightsyncError]] = {
    **{status: kind for kind, status in STATUSES.items()},
    Code.DEADLINE_EXCEEDED: Unavailable,
    Code.CANCELLED: Unavailable,
    Code.UNKNOWN: Unavailable,
    Code.INTERNAL: Unavailable,
}


class WatchEnded(Unavailable):
    """The server ends a watch. `after_sequence`: everything up to there was sent; the event after it may have come too."""

    def __init__(self, message: str, *, after_sequence: int, remedy: str = "watch on after that sequence") -> None:
        super().__init__(message, remedy=remedy)
        self.after_sequence = after_sequence


class HistoryCompacted(Compacted):
    """A watch asked for moves that are no longer kept. `version` at `sequence` is where to start anew."""

    def __init__(self, message: str, *, oldest_sequence: int, sequence: int, version: VersionRef | None, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.oldest_sequence = oldest_sequence
        self.sequence = sequence
        self.version = version


def status_of(error: WeightsyncError) -> grpc.StatusCode:
    """The status of an error, or of the nearest base that has one."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def detail_of(error: WeightsyncError) -> pb.ErrorDetail:
    """The error as a message, without secrets."""
    detail = pb.ErrorDetail(kind=error.kind, message=redact(error.message)[:MAX_TEXT], remedy=redact(error.remedy)[:MAX_TEXT])
    if isinstance(error, WatchEnded):
        detail.resume.after_sequence = error.after_sequence
    if isinstance(error, HistoryCompacted):
        detail.compacted.oldest_sequence = error.oldest_sequence
        detail.compacted.sequence = error.sequence
        if error.version is not None:
            detail.compacted.version.CopyFrom(version_pb2.VersionRef(version=error.version.version, manifest=error.version.manifest))
    return detail


def trailers_of(error: WeightsyncError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that carries the detail."""
    detail = detail_of(error)
    status = pb.Status(code=status_of(error).value[0], message=detail.message)
    status.details.add(type_url=_TYPE_URL, value=detail.SerializeToString())
    return ((DETAILS, status.SerializeToString()),)


def error_of(call: Any, address: str) -> WeightsyncError:
    """The error that a failed call means, as a client raises it. `call` is a `grpc.RpcError` that is a `grpc.Call` too."""
    detail = _detail(call)
    if detail is None:
        text = call.details() or call.code().name
        kind = _BARE.get(call.code(), Unavailable)
        if call.code() is Code.RESOURCE_EXHAUSTED:
            kind = Invalid if any(word in text for word in _TOO_LARGE) else Unavailable
        return kind(f"control plane {address}: {text}", remedy=_BARE_REMEDIES.get(kind, ""))
    if detail.HasField("resume"):
        return WatchEnded(detail.message, after_sequence=detail.resume.after_sequence, remedy=detail.remedy)
    if detail.HasField("compacted"):
        way = detail.compacted
        version = VersionRef(way.version.version, way.version.manifest) if way.HasField("version") else None
        return HistoryCompacted(
            detail.message, oldest_sequence=way.oldest_sequence, sequence=way.sequence, version=version, remedy=detail.remedy
        )
    return _KINDS.get(detail.kind, WeightsyncError)(detail.message, remedy=detail.remedy)


_TOO_LARGE = ("larger than max", "metadata size")  # gRPC's own words; else it has too much to do
_BARE_REMEDIES: dict[type[WeightsyncError], str] = {
    Unavailable: "check that the server runs and can be reached, and that both sides or none speak TLS, then retry",
    Unsupported: "the server does not know this call: upgrade it",
    Invalid: "the message is larger than the server takes",
}


def _detail(call: Any) -> pb.ErrorDetail | None:
    for name, value in call.trailing_metadata() or ():
        if name == DETAILS:
            try:
                status = pb.Status.FromString(value)
                return pb.ErrorDetail.FromString(status.details[0].value) if status.details else None
            except DecodeError:
                return None
    return None
