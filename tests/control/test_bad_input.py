"""Whatever is sent, the answer is a typed status, no trace of our sources, and a server that lives."""

import threading

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.control.plane import RUN, Plane
from weightsync.control.dial import Connection
from weightsync.control.server import SERVICES
from weightsync.control.settings import Limits
from weightsync.control.statuses import STATUSES, error_of
from weightsync.errors import Invalid, NotFound, Unavailable, Unsupported, WeightsyncError
from weightsync.v1 import channels_pb2, versions_pb2

PATHS = [f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods]
CANARY = "canary-5f1d7a"


@pytest.fixture(scope="module")
def address():
    with Plane() as plane:
        plane.run(2)
        yield plane.serve()


def send(address: str, path: str, data: bytes, metadata=()):
    """The error that a call with these bytes ends in; None when it was answered."""
    with grpc.insecure_channel(address, [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1 << 24)]) as channel:
        call = channel.unary_stream(path)(data, metadata=metadata, timeout=20)
        try:
            next(call)
        except grpc.RpcError as error:
            return error_of(error, address)
        finally:
            call.cancel()
    return None


def lives(address: str) -> None:
    connection = Connection(address, tls=None, token=None, token_file=None, insecure=False)
    answer = connection.call(PATHS[0], versions_pb2.GetVersionRequest(run=RUN, version=1), versions_pb2.GetVersionResponse, 20)
    assert answer.version.version == 1
    connection.close()


def test_every_method_was_tried():
    assert len(PATHS) == 15


@pytest.mark.parametrize("path", PATHS)
def test_bytes_that_are_no_request(address, path):
    for data in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f"):
        error = send(address, path, data)
        assert type(error) is Invalid
        assert "is no weightsync.v1." in error.message


@pytest.mark.parametrize("path", PATHS)
def test_an_empty_request(address, path):
    error = send(address, path, b"")
    assert type(error) is Invalid, error


@pytest.mark.parametrize("path", PATHS)
def test_a_message_that_is_too_large(address, path):
    error = send(address, path, b"\x0a" + b"\x80\x80\x80\x01" + b"x" * (2 << 20))
    assert isinstance(error, Invalid)
    assert "larger than" in error.message
    lives(address)


@pytest.mark.parametrize("size", [9_000, 100_000])
def test_metadata_that_is_too_large(address, size):
    assert isinstance(send(address, PATHS[0], b"", (("x-large", "y" * size),)), Invalid | Unavailable)
    lives(address)


def test_metadata_that_is_no_credential(address):
    for value in ("Bearer", "Negotiate x", "=" * 4000):
        assert type(send(address, PATHS[0], b"", (("authorization", value),))).kind == "unauthenticated"


@pytest.mark.parametrize(
    "path", ["/weightsync.v1.VersionService/Nope", "/weightsync.v1.Nope/Get", "/x", "/weightsync.v2.VersionService/GetVersion"]
)
def test_methods_that_do_not_exist(address, path):
    assert isinstance(send(address, path, b""), Unsupported)


REQUESTS = [
    (PATHS[0], versions_pb2.GetVersionRequest(run="nope", version=1), NotFound),
    (PATHS[0], versions_pb2.GetVersionRequest(run="../etc", version=1), Invalid),
    (PATHS[0], versions_pb2.GetVersionRequest(run="x" * 1000, version=1), Invalid),
    (PATHS[0], versions_pb2.GetVersionRequest(run=RUN, version=0), Invalid),
    (PATHS[0], versions_pb2.GetVersionRequest(run=RUN, version=99), NotFound),
    (PATHS[0], versions_pb2.GetVersionRequest(run=RUN, version=2**64 - 1), Invalid),
    (PATHS[1], versions_pb2.ListVersionsRequest(run=RUN, page_token="' OR 1=1"), Invalid),
    (PATHS[1], versions_pb2.ListVersionsRequest(run=RUN, page_token="9" * 99), Invalid),
    ("/weightsync.v1.VersionService/WatchVersions", versions_pb2.WatchVersionsRequest(run=RUN, after_sequence=2**64 - 1), Invalid),
    ("/weightsync.v1.VersionService/WatchVersions", versions_pb2.WatchVersionsRequest(run=RUN, channel="a/b"), Invalid),
    ("/weightsync.v1.ChannelService/GetChannel", channels_pb2.GetChannelRequest(run=RUN, channel="nope"), NotFound),
    ("/weightsync.v1.ChannelService/ChannelHistory", channels_pb2.ChannelHistoryRequest(run=RUN, channel="nope"), NotFound),
    (
        "/weightsync.v1.ChannelService/MoveChannel",
        channels_pb2.MoveChannelRequest(run=RUN, channel="serving", record=b"x" * (65 << 10)),
        Invalid,
    ),
    (
        "/weightsync.v1.ChannelService/MoveChannel",
        channels_pb2.MoveChannelRequest(run=RUN, channel="serving", record=b"x", expected_sequence=2**60),
        Invalid,
    ),
]


@pytest.mark.parametrize(("path", "request_", "kind"), REQUESTS)
def test_requests_that_cannot_be_met(address, path, request_, kind):
    error = send(address, path, request_.SerializeToString())
    assert type(error) is kind
    assert error.message
    lives(address)


@settings(max_examples=60)
@given(path=st.sampled_from(PATHS), data=st.binary(max_size=200))
def test_random_bytes(address, path, data):
    error = send(address, path, data)
    assert error is None or type(error) in STATUSES
    assert not isinstance(error, WeightsyncError) or error.kind != "error"


def test_a_bug_shows_no_source_and_no_secret(plane, monkeypatch, caplog):
    plane.run(1)
    address = plane.serve()

    def broken(*_):
        raise RuntimeError(f"token={CANARY}")

    monkeypatch.setattr("weightsync.catalog.catalog.Catalog.manifest_of", broken)
    error = send(address, PATHS[0], versions_pb2.GetVersionRequest(run=RUN, version=1).SerializeToString())
    assert type(error) is WeightsyncError
    assert (error.kind, error.message) == ("error", f"{PATHS[0]} failed in the server")
    assert "Traceback" not in str(error)
    assert "RuntimeError" in caplog.text  # it is in our log, from which the formatter takes secrets


def test_a_store_that_hangs_is_unavailable(plane, monkeypatch):
    plane.run(1)
    address = plane.serve(limits=Limits(unary_s=0.2, threads=1, waiting=0))
    free = threading.Event()
    monkeypatch.setattr("weightsync.catalog.catalog.Catalog.manifest_of", lambda *_: free.wait(20))
    data = versions_pb2.GetVersionRequest(run=RUN, version=1).SerializeToString()
    errors = [send(address, PATHS[0], data) for _ in range(2)]
    free.set()
    assert [type(error) for error in errors] == [Unavailable] * 2
    assert "longer than 0.2 s" in errors[0].message
    assert "too many calls" in errors[1].message
