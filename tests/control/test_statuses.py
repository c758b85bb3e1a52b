from pathlib import Path

import grpc
import pytest

from weightsync import errors
from weightsync.control.statuses import STATUSES, HistoryCompacted, WatchEnded, detail_of, error_of, status_of, trailers_of
from weightsync.format.refs import VersionRef
from weightsync.v1 import errors_pb2

Code = grpc.StatusCode
ROOT = Path(__file__).parents[2]

TABLE = {
    "unavailable": Code.UNAVAILABLE,
    "outcome_unknown": Code.UNKNOWN,
    "denied": Code.PERMISSION_DENIED,
    "unauthenticated": Code.UNAUTHENTICATED,
    "no_space": Code.RESOURCE_EXHAUSTED,
    "conflict": Code.ABORTED,
    "already_exists": Code.ALREADY_EXISTS,
    "fenced": Code.FAILED_PRECONDITION,
    "corrupt": Code.DATA_LOSS,
    "compacted": Code.OUT_OF_RANGE,
    "not_found": Code.NOT_FOUND,
    "invalid": Code.INVALID_ARGUMENT,
    "unsupported": Code.UNIMPLEMENTED,
    "dirty": Code.INTERNAL,
    "error": Code.INTERNAL,
}


class Failed:
    """What a client sees of a failed call."""

    def __init__(self, code, trailers=(), details=""):
        self._code, self._trailers, self._details = code, trailers, details

    def code(self):
        return self._code

    def details(self):
        return self._details

    def trailing_metadata(self):
        return self._trailers


def every_error():
    found, left = [], [errors.WeightsyncError]
    while left:
        kind = left.pop()
        if kind.__module__ == errors.__name__:
            found.append(kind)
        left += kind.__subclasses__()
    return sorted(found, key=lambda kind: kind.kind)


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.kind)
def test_every_error_has_its_own_status_and_comes_back_as_itself(kind):
    error = kind("it broke", remedy="mend it")
    assert status_of(error) is TABLE[kind.kind]
    back = error_of(Failed(status_of(error), trailers_of(error)), "host:1")
    assert (type(back), back.message, back.remedy) == (kind, "it broke", "mend it")


def test_a_status_tells_the_kind_but_for_internal_ones():
    assert {kind.kind: status for kind, status in STATUSES.items()} == TABLE
    told = [status for status in TABLE.values() if status is not Code.INTERNAL]
    assert len(set(told)) == len(told)


def test_the_proto_lists_the_same_table():
    text = (ROOT / "proto" / errors_pb2.DESCRIPTOR.name).read_text("utf-8")
    words = " ".join(line.removeprefix("//").strip() for line in text.splitlines() if line.startswith("//"))
    for kind, status in TABLE.items():
        assert f"{kind} {status.name}" in words


def test_the_way_on_travels():
    ended = error_of(Failed(Code.UNAVAILABLE, trailers_of(WatchEnded("drains", after_sequence=7))), "host:1")
    assert isinstance(ended, WatchEnded)
    assert ended.after_sequence == 7
    gone = HistoryCompacted("gone", oldest_sequence=5, sequence=9, version=VersionRef(8, "a" * 64))
    back = error_of(Failed(Code.OUT_OF_RANGE, trailers_of(gone)), "host:1")
    assert isinstance(back, HistoryCompacted)
    assert (back.oldest_sequence, back.sequence, back.version) == (5, 9, VersionRef(8, "a" * 64))


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (Code.UNAVAILABLE, "", errors.Unavailable),
        (Code.DEADLINE_EXCEEDED, "", errors.Unavailable),
        (Code.CANCELLED, "", errors.Unavailable),
        (Code.INTERNAL, "", errors.Unavailable),
        (Code.UNKNOWN, "", errors.Unavailable),
        (Code.UNIMPLEMENTED, "", errors.Unsupported),
        (Code.RESOURCE_EXHAUSTED, "CLIENT: Sent message larger than max (2 vs. 1)", errors.Invalid),
        (Code.RESOURCE_EXHAUSTED, "received metadata size exceeds hard limit", errors.Invalid),
        (Code.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!", errors.Unavailable),
    ],
)
def test_statuses_that_grpc_raises_itself(code, details, kind):
    error = error_of(Failed(code, details=details), "host:1")
    assert type(error) is kind
    assert "host:1" in error.message


def test_details_that_cannot_be_read_are_left_out():
    assert type(error_of(Failed(Code.NOT_FOUND, (("grpc-status-details-bin", b"\xff\xff"),)), "host:1")) is errors.NotFound


def test_texts_are_cut_and_secrets_taken_out():
    detail = detail_of(errors.Invalid("x" * 5000 + " ", remedy="see https://user:hunter2@host/"))
    assert len(detail.message) == 1024
    assert "hunter2" not in detail.remedy
