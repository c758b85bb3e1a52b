"""Ed25519 keys. A key is named by the first 16 bytes of the BLAKE3 of its public bytes, in hexadecimal."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from weightsync.errors import Invalid
from weightsync.format.envelope import Signature, signed_bytes

_SEED_HEX = 64


@dataclass(frozen=True)
class PublicKey:
    """A key that is trusted to sign; `raw` is 32 bytes."""

    raw: bytes

    @cached_property
    def name(self) -> str:
        """32 hex digits."""
        return blake3(self.raw).hexdigest()[:32]

    @cached_property
    def _key(self) -> Ed25519PublicKey:
        return Ed25519PublicKey.from_public_bytes(self.raw)

    def signed(self, digest: str, signature: Signature) -> bool:
        """Whether `signature` is this key's over the record with `digest`."""
        try:
            self._key.verify(bytes.fromhex(signature.sig), signed_bytes(digest))
        except InvalidSignature:
            return False
        return True

    @classmethod
    def from_hex(cls, text: str) -> "PublicKey":
        """From 64 hex digits. Raises `Invalid`."""
        return cls(_from_hex(text, "public key"))


class SigningKey:
    """A private key; never shown by `repr`."""

    @classmethod
    def create(cls, path: Path) -> "SigningKey":
        """A new key, in the new file `path`, which only its owner may read. Raises `Invalid` where something is there, `OSError`."""
        key = Ed25519PrivateKey.generate()
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise Invalid(f"{str(path)!r} exists", remedy="name a new file; no key is ever overwritten") from None
        with os.fdopen(fd, "wb") as file:
            file.write(key.private_bytes_raw().hex().encode() + b"\n")
            file.flush()
            os.fsync(fd)
        return cls(key.private_bytes_raw())

    def __init__(self, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, digest: str) -> Signature:
        """Signature over the record with `digest`."""
        return Signature(self.public.name, self._key.sign(signed_bytes(digest)).hex())

    @classmethod
    def from_hex(cls, text: str) -> "SigningKey":
        """From the 64 hex digits of a seed. Raises `Invalid`, without repeating them."""
        return cls(_from_hex(text, "signing key"))


def _from_hex(text: str, what: str) -> bytes:
    try:
        raw = bytes.fromhex(text.strip())
    except ValueError:
        raw = b""
    if len(raw) * 2 != _SEED_HEX:
        raise Invalid(f"a {what} is {_SEED_HEX} hexadecimal digits")
    return raw
