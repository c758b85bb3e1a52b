import os

import pytest

from tests.control.certificates import Authority
from tests.control.plane import RUN, moves
from weightsync.control.access import CallerRole, Gate, Tokens
from weightsync.control.settings import Pace
from weightsync.errors import Denied, Invalid, Unauthenticated
from weightsync.testing.clock import ManualClock
from weightsync.v1 import fleet_pb2

ONE, TWO, SHARED, READER = ("one-0123456789abcdef", "two-0123456789abcdef", "shared-0123456789abc", "reader-0123456789abc")


def write(path, *entries):
    path.write_text("".join("[[tokens]]\n" + "".join(f'{key} = "{value}"\n' for key, value in entry.items()) for entry in entries))
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    return path


@pytest.fixture
def tokens(tmp_path):
    return write(
        tmp_path / "tokens.toml",
        {"token": ONE, "role": "subscriber", "name": "host-1"},
        {"token": TWO, "role": "subscriber", "name": "host-2"},
        {"token": SHARED, "role": "subscriber"},
        {"token": READER, "role": "reader"},
    )


CALLS = {
    "register": lambda client, name: client.register(RUN, name),
    "report": lambda client, name: client.report(RUN, name, fleet_pb2.SubscriberReport()),
    "acquire": lambda client, name: client.acquire(RUN, name, 1),
    "renew": lambda client, name: client.renew(RUN, name, 1),
    "release": lambda client, name: client.release(RUN, name, 1),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_subscriber_speaks_for_itself_only(plane, tokens, call):
    plane.run(1)
    address = plane.serve(gate=Gate(tokens=Tokens(tokens)))
    one, two, shared = (plane.client(address, token=token) for token in (ONE, TWO, SHARED))
    for client, name in ((one, "host-1"), (two, "host-2"), (shared, "host-3")):
        client.register(RUN, name)
        client.acquire(RUN, name, 1)
        CALLS[call](client, name)
    for client, name in ((one, "host-2"), (two, "host-1"), (one, "host-3"), (shared, "host-1")):
        with pytest.raises(Denied, match=r"cannot speak for|belongs to another"):
            CALLS[call](client, name)


def test_by_certificate_too(plane, tmp_path):
    authority = Authority(tmp_path)
    plane.run(1)
    address = plane.serve(gate=Gate(certificates=True), tls=authority.server_tls())
    client = plane.client(address, tls=authority.client_tls("subscriber", "host-1"))
    client.register(RUN, "host-1")
    with pytest.raises(Denied, match="'host-1' cannot speak for 'host-2'"):
        client.register(RUN, "host-2")


def test_a_token_on_a_connection_with_a_certificate_decides(plane, tokens, tmp_path):
    authority = Authority(tmp_path)
    plane.run(1)
    address = plane.serve(gate=Gate(tokens=Tokens(tokens), certificates=True), tls=authority.server_tls())
    tls = authority.client_tls("operator")
    plane.client(address, tls=tls).register(RUN, "host-9")
    with pytest.raises(Denied, match="role 'reader'"):
        plane.client(address, tls=tls, token=READER).register(RUN, "host-9")
    with pytest.raises(Unauthenticated):
        plane.client(address, tls=tls, token="unknown-0123456789").get_channel(RUN)


def test_tokens_are_read_again_when_the_file_changes(plane, tokens):
    plane.run(1)
    address = plane.serve(gate=Gate(tokens=Tokens(tokens)))
    client = plane.client(address, token=READER)
    client.get_channel(RUN)
    write(tokens, {"token": ONE, "role": "reader"})
    with pytest.raises(Unauthenticated):
        client.get_channel(RUN)
    plane.client(address, token=ONE).get_channel(RUN)


def test_a_broken_file_leaves_what_was_in_force(plane, tokens, caplog):
    plane.run(1)
    client = plane.client(plane.serve(gate=Gate(tokens=Tokens(tokens))), token=READER)
    tokens.write_text(f"[[tokens\n{READER}")
    client.get_channel(RUN)
    tokens.unlink()
    client.get_channel(RUN)
    assert "not read again" in caplog.text
    assert READER not in caplog.text


def test_a_token_file_of_the_client_is_read_for_each_call(plane, tokens, tmp_path):
    plane.run(1)
    mine = tmp_path / "mine"
    mine.write_text(f"{READER}\n")
    client = plane.client(plane.serve(gate=Gate(tokens=Tokens(tokens))), token_file=mine)
    client.get_channel(RUN)
    mine.write_text("expired-0123456789\n")
    with pytest.raises(Unauthenticated):
        client.get_channel(RUN)
    mine.unlink()
    with pytest.raises(Invalid, match="cannot be read"):
        client.get_channel(RUN)


def test_a_revoked_token_ends_its_streams_at_the_next_sign_of_life(plane, tokens):
    plane.run(1)
    client = plane.client(plane.serve(gate=Gate(tokens=Tokens(tokens)), pace=Pace(poll_s=3600, bookmark_s=0.1)), token=READER)
    watch = plane.watch(client)
    moves(watch, 2)
    write(tokens, {"token": ONE, "role": "reader"})
    with pytest.raises(Unauthenticated):
        moves(watch, 1)


def test_a_certificate_that_expires_while_connected(plane, tmp_path):
    clock = ManualClock(now_s=1_800_000_000.0)
    clock.jump(-clock.now_s())
    authority = Authority(tmp_path)
    plane.run(1)
    address = plane.serve(gate=Gate(certificates=True, clock=clock), tls=authority.server_tls())
    client = plane.client(address, tls=authority.client_tls("reader"))
    client.get_channel(RUN)
    clock.jump(100 * 365 * 86400)
    with pytest.raises(Unauthenticated, match="expired"):
        client.get_channel(RUN)


@pytest.mark.parametrize(
    "entry",
    [
        {"token": "short", "role": "reader"},
        {"token": "long enough to be one", "role": "emperor"},
        {"token": "long enough to be one", "role": "reader", "name": "../x"},
        {"token": "long enough to be one", "role": "reader", "nmae": "x"},
        {"token": "long enough to be one"},
        {"role": "reader"},
        {"token": "ünprintable enough..", "role": "reader"},
    ],
)
def test_entries_that_cannot_be_used(tmp_path, entry):
    with pytest.raises(Invalid) as caught:
        Tokens(write(tmp_path / "tokens.toml", entry))
    assert "long enough" not in str(caught.value)


def test_files_that_cannot_be_used(tmp_path):
    with pytest.raises(Invalid, match="cannot be read"):
        Tokens(tmp_path / "none")
    path = tmp_path / "tokens.toml"
    path.write_text("[[tokens")
    with pytest.raises(Invalid, match="not TOML"):
        Tokens(path)
    with pytest.raises(Invalid, match="twice"):
        Tokens(write(path, {"token": ONE, "role": "reader"}, {"token": ONE, "role": "operator"}))


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", f"Basic {READER}"),),
        (("authorization", READER),),
        (("authorization", f"Bearer {READER}"), ("authorization", f"Bearer {READER}")),
        (("authorization", ""),),
        (("authorization", f"Bearer {READER[:-1]}"),),
    ],
)
def test_authorizations_that_are_no_token(tokens, metadata):
    class Context:
        def invocation_metadata(self):
            return metadata

    with pytest.raises(Unauthenticated) as caught:
        Gate(tokens=Tokens(tokens), anonymous=CallerRole.OPERATOR).admit("/weightsync.v1.VersionService/GetVersion", Context())
    assert READER[:8] not in str(caught.value)


def test_a_server_without_tokens_says_so(plane):
    client = plane.client(plane.serve(gate=Gate(anonymous=CallerRole.OPERATOR)), token=READER)
    with pytest.raises(Unauthenticated, match="without --tokens"):
        client.get_channel(RUN)


def test_tokens_are_not_kept_in_the_clear(tokens):
    assert ONE not in repr(vars(Tokens(tokens)))
