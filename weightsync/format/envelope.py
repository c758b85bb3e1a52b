"""The envelope of every signed record: canonical JSON body, its BLAKE3, zero or more signatures.

    {"body":{...},"digest":"<64 hex>","signatures":[{"key":"<32 hex>","sig":"<128 hex>"}]}

The whole envelope is canonical JSON too, so `jq` reads it. `Envelope.parse` hashes the body's bytes and compares **before** any JSON is
parsed; who checks signatures checks them over the digest, also before `Envelope.value`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from weightsync.errors import Corrupt
from weightsync.format import canonical
from weightsync.format.limits import MAX_RECORD_BYTES

_HEAD = b'{"body":'
_TAIL = re.compile(rb',"digest":"([0-9a-f]{64})","signatures":\[((?:\{"key":"[0-9a-f]{32}","sig":"[0-9a-f]{128}"\},?){0,16})\]\}')
_SIGNATURE = re.compile(rb'\{"key":"([0-9a-f]{32})","sig":"([0-9a-f]{128})"\}')
_TAIL_START = b',"digest":"'
SIGNED_DOMAIN = b"weightsync record 1\0"


@dataclass(frozen=True)
class Signature:
    """An Ed25519 signature. `key`: 32 hex digits naming the key. `sig`: 128 hex digits over `signed_bytes`."""

    key: str
    sig: str


@dataclass(frozen=True)
class Envelope:
    """A record whose body matches its digest; nothing is known yet of who wrote it."""

    data: bytes
    body: bytes
    digest: str
    signatures: tuple[Signature, ...]

    def value(self, what: str) -> Any:
        """The parsed body."""
        return canonical.parse(self.body, what)

    @classmethod
    def parse(cls, data: bytes, what: str) -> "Envelope":
        """Takes stored bytes apart and checks the digest. Raises `Corrupt` naming `what`."""
        if len(data) > MAX_RECORD_BYTES:
            raise Corrupt(f"{what} has {len(data)} bytes, more than {MAX_RECORD_BYTES}")
        start = data.rfind(_TAIL_START)
        tail = _TAIL.fullmatch(data, start) if start >= len(_HEAD) and data.startswith(_HEAD) else None
        if tail is None:
            raise Corrupt(f"{what} is not a weightsync record")
        body, listed = data[len(_HEAD) : start], tail[2]
        signatures = tuple(Signature(m[1].decode(), m[2].decode()) for m in _SIGNATURE.finditer(listed))
        if blake3(body).hexdigest() != tail[1].decode() or _join(signatures) != listed:
            raise Corrupt(f"{what} does not match its digest")
        return cls(data, body, tail[1].decode(), signatures)


def body_digest(body: bytes) -> str:
    """What identifies a record: BLAKE3 of its body, hexadecimal."""
    return blake3(body).hexdigest()


def signed_bytes(digest: str) -> bytes:
    """What a signature covers."""
    return SIGNED_DOMAIN + bytes.fromhex(digest)


def seal(body: bytes, signatures: Sequence[Signature] = ()) -> Envelope:
    """The envelope of canonical `body` bytes."""
    digest = body_digest(body)
    data = b"".join((_HEAD, body, _TAIL_START, digest.encode(), b'","signatures":[', _join(signatures), b"]}"))
    return Envelope(data, body, digest, tuple(signatures))


def _join(signatures: Sequence[Signature]) -> bytes:
    return b",".join(f'{{"key":"{s.key}","sig":"{s.sig}"}}'.encode() for s in signatures)
