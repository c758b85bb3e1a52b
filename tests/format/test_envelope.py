import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import Corrupt
from weightsync.format.envelope import Envelope, Signature, body_digest, seal, signed_bytes
from weightsync.format.limits import MAX_RECORD_BYTES

BODY = b'{"a":1,"text":",\\"digest\\":\\""}'
SIGNATURES = [Signature("ab" * 16, "cd" * 64), Signature("12" * 16, "34" * 64)]


@pytest.mark.parametrize("signatures", [[], SIGNATURES[:1], SIGNATURES, SIGNATURES * 8], ids=len)
def test_round_trip(signatures):
    sealed = seal(BODY, signatures)
    read = Envelope.parse(sealed.data, "x")
    assert read == sealed
    assert read.signatures == tuple(signatures)
    assert read.digest == body_digest(BODY)
    assert read.value("x") == {"a": 1, "text": ',"digest":"'}


def test_anyone_can_read_it_with_a_json_parser():
    value = json.loads(seal(BODY, SIGNATURES).data)
    assert value["body"] == json.loads(BODY)
    assert value["digest"] == body_digest(BODY)
    assert [s["key"] for s in value["signatures"]] == [s.key for s in SIGNATURES]


def test_a_signature_covers_a_domain_and_the_digest():
    assert signed_bytes(body_digest(BODY)) == b"weightsync record 1\0" + bytes.fromhex(body_digest(BODY))


def test_the_digest_is_checked_before_anything_is_parsed():
    """A body that is no JSON at all passes the envelope; a body whose digest is wrong never reaches the parser."""
    assert Envelope.parse(seal(b"not json").data, "x").body == b"not json"
    data = seal(b'{"a":1}').data.replace(b'"a":1', b'"a":2')
    with pytest.raises(Corrupt, match="x does not match its digest"):
        Envelope.parse(data, "x")


def test_a_body_cannot_pretend_to_be_the_tail():
    """The digest counts that stands last, so a body that contains a whole tail is still only a body."""
    inner = seal(b"{}").data
    sealed = seal(b'{"x":' + inner + b"}")
    assert Envelope.parse(sealed.data, "x").body == sealed.body


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"body":}',
        seal(BODY).data + b"\n",
        b" " + seal(BODY).data,
        seal(BODY).data.replace(b'"signatures":[]', b'"signatures":[],"more":1'),
        seal(BODY).data.replace(b',"digest"', b', "digest"'),
        seal(BODY).data.replace(body_digest(BODY).encode(), body_digest(BODY).upper().encode()),
        seal(BODY, SIGNATURES[:1]).data.replace(b"}]}", b"},]}"),
        seal(BODY, SIGNATURES).data.replace(b"},{", b"}{"),
        seal(BODY, SIGNATURES * 9).data,
        seal(BODY, [Signature("AB" * 16, "cd" * 64)]).data,
        seal(BODY, [Signature("ab" * 15, "cd" * 64)]).data,
        seal(BODY, [Signature("ab" * 16, "cd" * 63)]).data,
    ],
    ids=range(14),
)
def test_other_spellings_are_refused(data):
    with pytest.raises(Corrupt, match="the record"):
        Envelope.parse(data, "the record")


def test_oversize_is_refused_unread():
    with pytest.raises(Corrupt, match=f"more than {MAX_RECORD_BYTES}"):
        Envelope.parse(b"x" * (MAX_RECORD_BYTES + 1), "x")


def test_every_bit_and_every_length_counts():
    good = seal(BODY, SIGNATURES[:1]).data
    for position in range(len(good)):
        with pytest.raises(Corrupt):
            Envelope.parse(good[:position], "x")
        for bit in range(8):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            try:
                read = Envelope.parse(bytes(bad), "x")
            except Corrupt:
                continue
            # The digest does not cover signatures: whoever checks those refuses them.
            assert read.body == BODY
            assert read.signatures != tuple(SIGNATURES[:1])


@given(st.binary(max_size=300))
def test_junk_is_refused_with_a_typed_error(junk):
    for data in (junk, b'{"body":' + junk, seal(BODY).data + junk[:1]):
        try:
            assert Envelope.parse(data, "x").data == data
        except Corrupt:
            continue
