"""Which keys may sign which records.

Moves of `latest`, manifests and payloads want a publisher's signature, other channels an operator's, renewals the freshness key's.
Without keys the policy is unsigned: records still carry their digest. Keys come from local configuration, never from the store.
"""

import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from weightsync.config import read_text
from weightsync.errors import Corrupt, Denied, Invalid
from weightsync.format.envelope import Envelope, body_digest, seal
from weightsync.format.keys import LATEST
from weightsync.trust.signing import PublicKey, SigningKey


class Role(Enum):
    """What a key may sign."""

    PUBLISHER = "publisher"
    OPERATOR = "operator"
    FRESHNESS = "freshness"


def role_of_channel(channel: str) -> Role:
    """Who moves `channel`."""
    return Role.PUBLISHER if channel == LATEST else Role.OPERATOR


class Policy:
    """Signs what this process writes, and checks what it reads."""

    def __init__(self, trusted: Mapping[Role, Sequence[PublicKey]] | None = None, key: SigningKey | None = None) -> None:
        """`trusted`: the keys of each role; a role without keys cannot sign at all. None or empty: unsigned mode."""
        self._trusted = {role: {k.name: k for k in keys} for role, keys in (trusted or {}).items()}
        self._key = key

    @property
    def signed(self) -> bool:
        """Whether signatures are demanded."""
        return bool(self._trusted)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of all trusted keys, sorted."""
        return tuple(sorted({name for keys in self._trusted.values() for name in keys}))

    def may_sign(self, role: Role) -> bool:
        """Whether `seal` would make a record that readers with this policy accept."""
        return not self.signed or (self._key is not None and self._key.public.name in self._trusted.get(role, {}))

    def seal(self, body: bytes, role: Role) -> Envelope:
        """The envelope to store. Raises `Denied` where readers with this policy would refuse it."""
        if not self.signed and self._key is None:
            return seal(body)
        if self._key is None or not self.may_sign(role):
            raise Denied(f"this record needs the signature of a trusted {role.value} key", remedy="give one with --key")
        return seal(body, [self._key.sign(body_digest(body))])

    def check(self, envelope: Envelope, role: Role, what: str) -> Envelope:
        """`envelope`, if one of the role's keys signed it. Raises `Corrupt`."""
        if not self.signed:
            return envelope
        keys = self._trusted.get(role, {})
        for signature in envelope.signatures:
            if signature.key in keys and keys[signature.key].signed(envelope.digest, signature):
                return envelope
        raise Corrupt(f"{what} is not signed by a trusted {role.value} key", remedy="check the trusted keys, or who writes to the store")


UNSIGNED = Policy()


def load_policy(trusted_file: Path | None, key_file: Path | None) -> Policy:
    """From a TOML file of public keys (lists under `publisher`, `operator`, `freshness`) and a file with one signing key; hexadecimal."""
    trusted: dict[Role, list[PublicKey]] = {}
    if trusted_file is not None:
        for name, keys in _read_toml(trusted_file).items():
            if name not in {role.value for role in Role} or not isinstance(keys, list):
                raise Invalid(f"{trusted_file}: {name!r} is not a role with a list of keys")
            trusted[Role(name)] = [PublicKey.from_hex(str(key)) for key in keys]
        if not any(trusted.values()):
            raise Invalid(f"{trusted_file} names no key", remedy="list one, or leave --trusted-keys out to work unsigned")
    key = SigningKey.from_hex(_read_text(key_file)) if key_file is not None else None
    return Policy(trusted, key)


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or type(error).__name__) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Invalid(
            f"key file {str(path)!r} cannot be read: {why}", remedy="check --trusted-keys and --key (trusted_keys, key)"
        ) from None


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(_read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Invalid(f"{path} is not TOML: {error}") from None
