"""What goes wrong between us and an S3 server, each with the right behaviour."""

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tests.store.fault_proxy import Exchange, FaultProxy, after, before, cut, flip, lose_reply, serving, status, strip
from weightsync.clock import new_write_id
from weightsync.errors import AlreadyExists, Conflict, Denied, Invalid, NoSpace, OutcomeUnknown, Unavailable, Unsupported, WeightsyncError
from weightsync.store.probe import probe
from weightsync.store.retry import RetryPolicy
from weightsync.store.s3 import S3Store
from weightsync.store.s3.upload import MAX_PARTS, PART_BYTES, part_bytes
from weightsync.store.settle import ensure
from weightsync.testing.clock import ManualClock
from weightsync.testing.s3_server import ACCESS_KEY, SECRET_KEY, S3Server

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("credentials", "small_parts")]
MIB = 1 << 20
LARGE = bytes(range(256)) * (2 * 5 * MIB // 256) + b"and a rest"  # three parts


@pytest.fixture
def proxy(server: S3Server) -> FaultProxy:
    return FaultProxy(server.endpoint, server.environment)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(server: S3Server, proxy: FaultProxy, clock: ManualClock) -> Iterator[S3Store]:
    with serving(proxy) as endpoint:
        store = S3Store(
            server.bucket,
            new_write_id(),
            endpoint=endpoint,
            region="us-east-1",
            clock=clock,
            policy=RetryPolicy(attempts=5, deadline_s=1e9),
        )
        yield store
        store.close()


def read(store: S3Store, key: str, count: int, start: int = 0) -> bytes:
    buffer = bytearray(count)
    store.read_into(key, memoryview(buffer), start=start)
    return bytes(buffer)


def ranges(proxy: FaultProxy) -> list[str]:
    return [x.headers.get("Range", "") for x in proxy.requests if x.method == "GET"]


# bodies


@pytest.mark.parametrize("get", [lambda s, n: s.get("k", max_bytes=n).data, lambda s, n: read(s, "k", n)], ids=["get", "read_into"])
def test_a_cut_body_is_resumed_where_it_broke(store: S3Store, proxy: FaultProxy, get: Callable[[S3Store, int], bytes]) -> None:
    data = os.urandom(3 * MIB)
    store.create("k", data)
    for sent_bytes in (0, MIB + 5, 0):
        proxy.add(cut(sent_bytes), method="GET")
    assert get(store, len(data)) == data
    assert ranges(proxy)[1:] == [f"bytes=0-{3 * MIB - 1}", *[f"bytes={MIB + 5}-{3 * MIB - 1}"] * 2]


def test_a_cut_at_any_place_costs_little(store: S3Store, proxy: FaultProxy) -> None:
    data = os.urandom(2 * MIB)
    store.create("k", data)
    for at in range(0, len(data), 3 * 64 * 1024):
        del proxy.requests[:]
        proxy.add(cut(at), method="GET")
        assert read(store, "k", len(data)) == data
        first, second = (int(span.removeprefix("bytes=").split("-")[0]) for span in ranges(proxy))
        assert (first, at - 256 * 1024 < second <= at) == (0, True)


def test_a_body_that_breaks_often_arrives_while_it_progresses(store: S3Store, proxy: FaultProxy) -> None:
    data = os.urandom(4 * MIB)
    store.create("k", data)
    proxy.add(cut(256 * 1024), method="GET", times=15)
    assert read(store, "k", len(data)) == data


def test_a_body_that_never_comes_ends_unavailable(store: S3Store, proxy: FaultProxy) -> None:
    store.create("k", bytes(1000))
    proxy.add(cut(10), method="GET", times=99)
    with pytest.raises(Unavailable, match="'k'"):
        read(store, "k", 1000)
    assert len(ranges(proxy)) == 5


def test_a_body_that_drips_is_given_up(store: S3Store, proxy: FaultProxy, clock: ManualClock) -> None:
    data = os.urandom(MIB)
    store.create("k", data)
    proxy.add(after(lambda x: setattr(x, "pace", lambda: clock.advance(1.0))), method="GET")
    assert read(store, "k", len(data)) == data
    assert len(ranges(proxy)) == 2


@pytest.mark.parametrize("honoured", [True, False])
def test_a_resumed_body_never_mixes_two_objects(store: S3Store, proxy: FaultProxy, honoured: bool) -> None:
    old, new = b"a" * 3 * MIB, b"b" * 3 * MIB
    store.create("k", old)

    def replace(x: Exchange) -> None:
        x.sent_bytes = MIB
        store.put("k", new)

    proxy.add(after(replace), method="GET")
    if not honoured:
        proxy.add(strip("if-match"), method="GET", header="if-match")
    assert read(store, "k", len(new)) == new


def test_a_range_of_another_length_is_not_taken(store: S3Store, proxy: FaultProxy) -> None:
    store.create("k", b"0123456789")

    def shorten(x: Exchange) -> None:
        x.data = x.data[:-1]
        x.answer["Content-Length"] = str(len(x.data))

    proxy.add(after(shorten), method="GET")
    assert read(store, "k", 5, 2) == b"23456"
    assert len(ranges(proxy)) == 2


def test_another_range_is_not_taken(store: S3Store, proxy: FaultProxy) -> None:
    store.create("k", b"0123456789")
    proxy.add(before(lambda x: (x.headers.update(Range="bytes=3-7"), setattr(x, "resign", True))), method="GET")
    assert read(store, "k", 5, 2) == b"23456"


def test_a_server_without_ranges_is_unsupported(store: S3Store, proxy: FaultProxy) -> None:
    store.create("k", b"0123456789")
    proxy.add(strip("range"), method="GET", times=2)
    assert read(store, "k", 10) == b"0123456789"
    with pytest.raises(Unsupported):
        read(store, "k", 5, 2)


def test_large_reads_use_eight_ranges_at_once(store: S3Store, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightsync.store.s3.download.RANGE_BYTES", 64 * 1024)
    data = os.urandom(8 * 64 * 1024)
    store.create("k", data)
    together = threading.Barrier(8)
    proxy.add(after(lambda _: together.wait(timeout=60)), method="GET", times=8)  # answers only when eight wait
    assert read(store, "k", len(data)) == data


def test_large_writes_send_their_parts_at_once(store: S3Store, proxy: FaultProxy) -> None:
    together = threading.Barrier(3)
    proxy.add(before(lambda _: together.wait(timeout=60)), method="PUT", path="partNumber", times=3)
    store.create("k", LARGE)
    assert store.stat("k").size_bytes == len(LARGE)


# answers to reads


def test_slow_down_is_obeyed(store: S3Store, proxy: FaultProxy, clock: ManualClock) -> None:
    store.create("k", b"x")
    proxy.add(status(503, "SlowDown", Retry_After="7"), method="GET")
    proxy.add(status(429, "TooManyRequests"), method="GET")
    assert store.get("k", max_bytes=9).data == b"x"
    assert clock.sleeps_s[0] == 7.0
    assert len(clock.sleeps_s) == 2


def test_a_page_of_a_broken_proxy_is_retried(store: S3Store, proxy: FaultProxy) -> None:
    def page(x: Exchange) -> None:
        x.status, x.data, x.answer = 502, b"<html>Bad <b>gateway", {"Content-Type": "text/html", "Content-Length": "20"}

    store.create("k", b"x")
    for method, act in (
        ("GET", lambda: store.get("k", max_bytes=9).data),
        ("HEAD", lambda: store.stat("k")),
        ("GET", lambda: list(store.list(""))),
    ):
        proxy.add(after(page), method=method)
        assert act()


def test_a_store_that_fails_three_in_ten_is_usable(store: S3Store, proxy: FaultProxy) -> None:
    store.create("k", b"x")
    del proxy.requests[:]

    def sometimes(x: Exchange, forward: Callable[[], None]) -> None:
        (status(500, "InternalError") if len(proxy.requests) * 7 % 10 < 3 else lambda _, go: go())(x, forward)

    proxy.add(sometimes, method="GET", times=10_000)
    for _ in range(100):
        assert store.get("k", max_bytes=9).data == b"x"
    assert 130 <= len(proxy.requests) <= 150


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ((403, "AccessDenied"), Denied, "policy"),
        ((404, "NoSuchBucket"), Invalid, "bucket is not there"),
        ((507, "XMinioStorageFull"), NoSpace, "free some space"),
        ((501, "NotImplemented"), Unsupported, "another store"),
        ((400, "AuthorizationHeaderMalformed"), Invalid, "region"),
    ],
)
def test_final_answers_are_not_repeated(store: S3Store, proxy: FaultProxy, answer: tuple[int, str], error: type, words: str) -> None:
    proxy.add(status(*answer), times=9)
    with pytest.raises(error, match=words) as caught:
        store.get("k", max_bytes=9)
    assert isinstance(caught.value, error)
    assert len(proxy.requests) == 1


@pytest.mark.parametrize("code", [301, 302, 307, 308])
def test_redirects_are_not_followed(store: S3Store, proxy: FaultProxy, code: int) -> None:
    proxy.add(status(code, "PermanentRedirect", Location="http://169.254.169.254/x", x_amz_bucket_region="eu-north-7"), times=99)
    for act in (
        lambda: store.get("k", max_bytes=9),
        lambda: store.create("k", b"x"),
        lambda: store.stat("k"),
        lambda: list(store.list("")),
    ):
        with pytest.raises(Invalid, match="eu-north-7"):
            act()
    assert [x.method for x in proxy.requests] == ["GET", "PUT", "HEAD", "GET"]


# credentials and clocks


def test_expired_credentials_are_read_again(store: S3Store, proxy: FaultProxy) -> None:
    proxy.add(status(400, "ExpiredToken"), method="PUT", path="partNumber=3")
    store.create("k", LARGE)
    assert read(store, "k", len(LARGE)) == LARGE
    parts = [x.path.split("partNumber=")[1][0] for x in proxy.requests if "partNumber" in x.path]
    assert sorted(parts) == ["1", "2", "3", "3"]  # only the refused part is sent again


@pytest.mark.parametrize(
    "act", [lambda s: s.create("k", b"x"), lambda s: s.list(""), lambda s: s.get("k", max_bytes=9)], ids=["create", "list", "get"]
)
def test_renewed_credentials_are_used(
    server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, act: Callable[[S3Store], object]
) -> None:
    with serving(proxy) as endpoint:
        S3Store(server.bucket, endpoint=endpoint).put("k", b"x")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stale")
        store = S3Store(server.bucket, endpoint=endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        proxy.add(status(400, "ExpiredToken"))
        with suppress(AlreadyExists):
            act(store)
        assert [("stale" in x.headers["Authorization"]) for x in proxy.requests[-2:]] == [True, False]
        store.close()


def test_credentials_that_stay_expired_are_denied(store: S3Store, proxy: FaultProxy) -> None:
    proxy.add(status(400, "ExpiredToken"), times=99)
    with pytest.raises(Denied, match="credentials have expired"):
        store.create("k", b"x")
    assert len(proxy.requests) == 3


def test_a_wrong_clock_is_named(store: S3Store, proxy: FaultProxy, clock: ManualClock) -> None:
    clock.jump(-20 * 60)
    proxy.add(status(403, "RequestTimeTooSkewed", Date="Tue, 14 Nov 2023 22:13:20 GMT"), times=99)
    with pytest.raises(Denied, match=r"clock differs from the server's by -1200 s; set the clock"):
        store.create("k", b"x")


def test_a_request_that_aged_on_the_way_is_signed_again(store: S3Store, proxy: FaultProxy) -> None:
    proxy.add(status(403, "RequestTimeTooSkewed"), method="PUT", path="partNumber=2")
    store.create("k", LARGE)
    assert store.stat("k").size_bytes == len(LARGE)


# conditional writes


def test_a_lost_reply_leaves_the_outcome_unknown(store: S3Store, proxy: FaultProxy) -> None:
    proxy.add(lose_reply(), method="PUT")
    with pytest.raises(OutcomeUnknown):
        store.create("k", b"x")
    assert len(proxy.requests) == 1  # nobody repeated it: the repetition would have met itself
    etag = store.stat("k").etag
    proxy.add(lose_reply(), method="PUT")
    with pytest.raises(OutcomeUnknown):
        store.swap("k", b"y", etag)
    assert store.get("k", max_bytes=9).data == b"y"


@pytest.mark.parametrize("act", [lambda s: s.create("k", b"x"), lambda s: s.swap("k", b"x", '"tag"')], ids=["create", "swap"])
@pytest.mark.parametrize("answer", [(409, "ConditionalRequestConflict"), (500, "InternalError"), (503, "ServiceUnavailable"), (504, "")])
def test_unclear_answers_to_conditional_writes(
    store: S3Store, proxy: FaultProxy, act: Callable[[S3Store], object], answer: tuple[int, str]
) -> None:
    proxy.add(status(*answer))
    with pytest.raises(OutcomeUnknown):
        act(store)
    assert len(proxy.requests) == 1


def test_a_swap_of_nothing_conflicts_as_aws_says_it(store: S3Store, proxy: FaultProxy) -> None:
    proxy.add(status(404, "NoSuchKey"))
    with pytest.raises(Conflict, match="gone"):
        store.swap("k", b"x", '"tag"')


@pytest.mark.parametrize(
    "fault",
    [
        lose_reply(),
        status(409, "ConditionalRequestConflict"),
        status(500, "InternalError"),
        status(503, "ServiceUnavailable"),
        status(503, "SlowDown"),
        before(lambda x: setattr(x, "body", flip(x.body, 1))),
        before(lambda x: (setattr(x, "body", x.body[: len(x.body) // 2]), setattr(x, "resign", True))),
    ],
    ids=["lost", "409", "500", "503", "slow", "flipped", "torn"],
)
@pytest.mark.parametrize("data", [b"mine", os.urandom(MIB + MIB // 2)], ids=["small", "streamed"])
def test_ensure_gets_through(store: S3Store, proxy: FaultProxy, fault: Callable[..., None], data: bytes) -> None:
    proxy.add(fault, method="PUT")
    ensure(store, "k", data, clock=ManualClock())
    assert store.get("k", max_bytes=len(data)).data == data


def test_bytes_damaged_on_the_way_up_are_never_stored(store: S3Store, proxy: FaultProxy) -> None:
    proxy.add(before(lambda x: setattr(x, "body", flip(x.body, 2))), method="PUT")
    with pytest.raises(Unavailable):
        store.create("k", b"mine")
    assert list(store.list("")) == []


def test_bytes_damaged_on_the_way_down_do_not_lose_a_create(store: S3Store, proxy: FaultProxy) -> None:
    store.create("k", b"mine")
    proxy.add(after(lambda x: setattr(x, "data", flip(x.data, 2))), method="GET")
    ensure(store, "k", b"mine")
    proxy.add(after(lambda x: setattr(x, "data", flip(x.data, 2))), method="GET", times=9)
    with pytest.raises(AlreadyExists, match="'k'"):
        ensure(store, "k", b"mine")


@pytest.mark.parametrize(("header", "capability"), [("if-none-match", "none"), ("if-match", "create_only")])
def test_ignored_conditions_are_noticed(store: S3Store, proxy: FaultProxy, header: str, capability: str) -> None:
    proxy.add(strip(header), method="PUT", header=header, times=99)
    assert probe(store, "gc/") == capability
    assert list(store.list("")) == []


def test_put_and_delete_are_repeated(store: S3Store, proxy: FaultProxy) -> None:
    proxy.add(lose_reply(), method="PUT")
    store.put("k", b"x")
    proxy.add(lose_reply(), method="DELETE")
    store.delete("k")
    assert [x.method for x in proxy.requests] == ["PUT", "PUT", "DELETE", "DELETE"]
    proxy.add(lose_reply(), times=99)
    for act in (lambda: store.put("k", b"x"), lambda: store.delete("k")):
        with pytest.raises(OutcomeUnknown):
            act()


# uploads in parts and checksums


def open_uploads(server: S3Server) -> list[object]:
    store = S3Store(server.bucket, endpoint=server.endpoint)
    found = store._client.call(lambda sdk: sdk.list_multipart_uploads(Bucket=server.bucket), "list uploads")
    store.close()
    return list(found.get("Uploads", ()))


def test_an_error_in_a_200_is_a_failure(store: S3Store, proxy: FaultProxy, server: S3Server) -> None:
    proxy.add(status(200, "InternalError"), method="POST", path="uploadId=")
    with pytest.raises(OutcomeUnknown):
        store.create("k", LARGE)
    assert open_uploads(server) == []
    ensure(store, "k", LARGE)


def test_a_lost_completion_is_settled(store: S3Store, proxy: FaultProxy, server: S3Server) -> None:
    proxy.add(lose_reply(), method="POST", path="uploadId=")
    ensure(store, "k", LARGE)
    assert read(store, "k", len(LARGE)) == LARGE
    assert open_uploads(server) == []


def test_a_failed_upload_is_aborted(store: S3Store, proxy: FaultProxy, server: S3Server) -> None:
    proxy.add(status(500, "InternalError"), method="PUT", path="partNumber=2", times=99)
    with pytest.raises(Unavailable, match="part 2"):
        store.create("k", LARGE)
    assert open_uploads(server) == []
    assert list(store.list("")) == []


def test_a_damaged_part_is_sent_again(store: S3Store, proxy: FaultProxy) -> None:
    proxy.add(before(lambda x: setattr(x, "body", flip(x.body, 99))), method="PUT", path="partNumber=1")
    store.create("k", LARGE)
    assert read(store, "k", len(LARGE)) == LARGE


def test_large_creates_do_not_replace(store: S3Store, proxy: FaultProxy) -> None:
    store.create("k", b"first")
    with pytest.raises(AlreadyExists):
        store.create("k", LARGE)
    assert store.get("k", max_bytes=9).data == b"first"
    assert [x.headers["If-None-Match"] for x in proxy.requests if x.method == "POST" and "uploadId" in x.path] == ["*"]


@pytest.mark.parametrize("data", [b"mine", LARGE], ids=["small", "large"])
def test_a_server_that_refuses_checksums_gets_md5(store: S3Store, proxy: FaultProxy, data: bytes) -> None:
    proxy.add(status(400, "InvalidRequest"), header="x-amz-checksum", times=99)
    store.create("k", data)
    assert store.get("k", max_bytes=len(data)).data == data
    assert [x.status for x in proxy.requests].count(400) == 1
    del proxy.requests[:]
    store.create("k2", data)
    writes = [x for x in proxy.requests if x.method == "PUT"]
    assert all("Content-MD5" in x.headers and "x-amz-checksum-crc32" not in x.headers for x in writes)
    proxy.add(before(lambda x: setattr(x, "body", flip(x.body, 1))), method="PUT")
    if data == LARGE:
        store.create("k3", data)  # only the damaged part is sent again
    else:
        with pytest.raises(Unavailable):
            store.create("k3", data)


def test_requests_are_plain(store: S3Store, proxy: FaultProxy) -> None:
    """Nothing that servers other than AWS stumble over, and no wait for "100 Continue" before parts."""
    store.create("k", LARGE)
    store.create("k2", b"x")
    store.create("k3", bytes(2 * MIB))
    for x in proxy.requests:
        assert "aws-chunked" not in x.headers.get("Content-Encoding", "")
        assert x.headers["X-Amz-Content-SHA256"] == "UNSIGNED-PAYLOAD" or not x.body or x.method == "POST"
        assert "x-amz-trailer" not in {name.lower() for name in x.headers}
        assert "Expect" not in x.headers or "partNumber" not in x.path


def test_parts_grow_for_huge_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightsync.store.s3.upload.PART_BYTES", PART_BYTES)
    for size in (1, MAX_PARTS * PART_BYTES, MAX_PARTS * PART_BYTES + 1, 5 << 40):
        part = part_bytes(size)
        assert part % MIB == 0
        assert -(-size // part) <= MAX_PARTS
    assert part_bytes(1 << 30) == PART_BYTES


# reachability and secrets


def test_nobody_there(server: S3Server) -> None:
    store = S3Store("b", endpoint="http://127.0.0.1:9", policy=RetryPolicy(attempts=2), clock=ManualClock())
    for act in (lambda: store.get("k", max_bytes=9), lambda: store.create("k", b"x"), lambda: store.stat("k")):
        with pytest.raises(Unavailable, match="no connection") as caught:
            act()
        assert not isinstance(caught.value, OutcomeUnknown)
    store.close()


def test_wrong_and_missing_credentials(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(Denied, match="SignatureDoesNotMatch"):
        S3Store(server.bucket, endpoint=server.endpoint).get("k", max_bytes=9)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(Denied, match="AWS_ACCESS_KEY_ID"):
        S3Store(server.bucket, endpoint=server.endpoint).get("k", max_bytes=9)


def test_a_missing_bucket_is_no_missing_object(server: S3Server) -> None:
    store = S3Store("nowhere", endpoint=server.endpoint)
    for act in (lambda: store.get("k", max_bytes=9), lambda: list(store.list(""))):
        with pytest.raises(Invalid, match="bucket"):
            act()


def test_unusable_settings_are_named() -> None:
    with pytest.raises(Invalid, match="profile 'nobody'"):
        S3Store("b", profile="nobody")
    with pytest.raises(Invalid, match="endpoint 'localhost:1'"):
        S3Store("b", endpoint="localhost:1")
    with pytest.raises(Invalid):
        S3Store("b", "../up")


def test_secrets_appear_nowhere(store: S3Store, proxy: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    texts = []
    for fault in (status(500, "InternalError"), lose_reply(), status(403, "AccessDenied"), cut(0)):
        proxy.add(fault, times=5)
        for act in (lambda: store.create("k", b"x"), lambda: store.get("k", max_bytes=9)):
            try:
                act()
            except WeightsyncError:
                texts.append(traceback.format_exc())
        del proxy.rules[:]
    everything = "".join(texts) + caplog.text + store.url + repr(store)
    assert texts
    for secret in (SECRET_KEY, "Signature=", "AWS4-HMAC"):
        assert secret not in everything


def test_a_listing_holds_only_our_keys(store: S3Store, server: S3Server) -> None:
    """A directory marker or a key that a person put there is not ours."""
    store.put("a/b", b"x")
    for foreign in ("a/", ".hidden", "with space"):
        key = store._prefix + foreign
        store._client.call(lambda sdk, key=key: sdk.put_object(Bucket=server.bucket, Key=key, Body=b""), "put")
    assert [found.key for found in store.list("")] == ["a/b"]
