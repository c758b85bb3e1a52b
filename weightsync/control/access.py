"""Who may call what. A caller is known by a client certificate or a bearer token; a table says which roles a method takes.

A subscriber speaks for its own name only. Roles: every one above may do what `READER` may.
"""

import logging
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from hmac import compare_digest
from pathlib import Path
from typing import Any

from blake3 import blake3
from cryptography import x509
from cryptography.x509.oid import NameOID

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import Denied, Invalid, Unauthenticated, WeightsyncError
from weightsync.format.names import check_plain

logger = logging.getLogger(__name__)

MIN_TOKEN_CHARS = 16
MAX_TOKENS_BYTES = 8 << 20
_BEARER = "bearer "
_INDEX = 16


class CallerRole(Enum):
    """What a caller is."""

    READER = "reader"
    SUBSCRIBER = "subscriber"
    PUBLISHER = "publisher"
    OPERATOR = "operator"


ANYBODY: frozenset[CallerRole] | None = None  # also callers that are not known
READERS = frozenset(CallerRole)
SUBSCRIBERS = READERS - {CallerRole.READER}
PUBLISHERS = frozenset({CallerRole.PUBLISHER, CallerRole.OPERATOR})
OPERATORS = frozenset({CallerRole.OPERATOR})

ACCESS: Mapping[str, frozenset[CallerRole] | None] = {
    "/weightsync.v1.VersionService/GetVersion": READERS,
    "/weightsync.v1.VersionService/ListVersions": READERS,
    "/weightsync.v1.VersionService/WatchVersions": READERS,
    "/weightsync.v1.VersionService/Notify": PUBLISHERS,
    "/weightsync.v1.ChannelService/GetChannel": READERS,
    "/weightsync.v1.ChannelService/ListChannels": READERS,
    "/weightsync.v1.ChannelService/MoveChannel": OPERATORS,
    "/weightsync.v1.ChannelService/ChannelHistory": READERS,
    "/weightsync.v1.FleetService/Register": SUBSCRIBERS,
    "/weightsync.v1.FleetService/Report": SUBSCRIBERS,
    "/weightsync.v1.FleetService/ListSubscribers": READERS,
    "/weightsync.v1.FleetService/WatchFleet": READERS,
    "/weightsync.v1.LeaseService/Acquire": SUBSCRIBERS,
    "/weightsync.v1.LeaseService/Renew": SUBSCRIBERS,
    "/weightsync.v1.LeaseService/Release": SUBSCRIBERS,
    "/grpc.health.v1.Health/Check": ANYBODY,
    "/grpc.health.v1.Health/List": ANYBODY,
    "/grpc.health.v1.Health/Watch": ANYBODY,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": READERS,
}


@dataclass(frozen=True)
class Identity:
    """A caller. `name` None: the credential names nobody, and may speak for any name that no other credential has."""

    role: CallerRole
    name: str | None = None


class Tokens:
    """Bearer tokens from a TOML file, read again when it changes.

        [[tokens]]
        token = "at least 16 characters"
        role = "subscriber"                # reader, subscriber, publisher or operator
        name = "host-17"                   # optional: the only name that it may report and hold leases for

    They are kept, looked up and compared as digests under a key that lives as long as this process: neither its memory nor the time that an
    answer takes tells anything about them.
    """

    def __init__(self, path: Path) -> None:
        """Raises `Invalid` when the file cannot be used."""
        self._path = path
        self._key = os.urandom(32)
        self._stamp: tuple[int, int, int] | None = None
        self._known: dict[bytes, tuple[bytes, Identity]] = {}  # by the first bytes of the digest
        self._names: frozenset[str] = frozenset()
        self._read()

    def find(self, token: str) -> Identity | None:
        """Whose token it is."""
        self._refresh()
        digest = self._digest(token)
        known, identity = self._known.get(digest[:_INDEX], (b"", None))
        return identity if compare_digest(known, digest) else None

    @property
    def names(self) -> frozenset[str]:
        """Names that some token is bound to."""
        return self._names

    def _digest(self, token: str) -> bytes:
        return blake3(token.encode("utf-8", "surrogateescape"), key=self._key).digest()

    def _refresh(self) -> None:
        """Takes the file as it is now; where it cannot be used, what was read before stays in force."""
        try:
            if self._stat() != self._stamp:
                self._read()
        except (OSError, WeightsyncError) as error:
            logger.error("the tokens file is not read again: %s", error)  # noqa: TRY400  its trace would say nothing more

    def _stat(self) -> tuple[int, int, int]:
        stat = self._path.stat()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> None:
        try:
            stamp = self._stat()
            if stamp[1] > MAX_TOKENS_BYTES:
                raise Invalid(f"the tokens file {str(self._path)!r} has more than {MAX_TOKENS_BYTES} bytes")
            entries = tomllib.loads(self._path.read_text("utf-8")).get("tokens", [])
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror or type(error).__name__) if isinstance(error, OSError) else "it is not UTF-8 text"
            raise Invalid(
                f"the tokens file {str(self._path)!r} cannot be read: {why}",
                remedy="check --tokens, and that the user of this process may read it",
            ) from None
        except tomllib.TOMLDecodeError:  # its message may repeat a token
            raise Invalid(f"the tokens file {str(self._path)!r} is not TOML", remedy="write [[tokens]] tables") from None
        found = [self._entry(number, entry) for number, entry in enumerate(entries, 1)]
        known = {digest[:_INDEX]: (digest, identity) for digest, identity in found}
        if len(known) != len(entries):
            raise Invalid(f"the tokens file {str(self._path)!r} has the same token twice")
        self._known, self._stamp = known, stamp
        self._names = frozenset(identity.name for _, identity in found if identity.name)

    def _entry(self, number: int, entry: Any) -> tuple[bytes, Identity]:
        where = f"entry {number} of the tokens file {str(self._path)!r}"
        if not isinstance(entry, dict) or not set(entry) <= {"token", "role", "name"} or not {"token", "role"} <= set(entry):
            raise Invalid(f"{where} has not exactly a token, a role and at most a name")
        token, role, name = entry["token"], entry["role"], entry.get("name")
        if not isinstance(token, str) or len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable():
            raise Invalid(f"{where}: a token is at least {MIN_TOKEN_CHARS} printable ASCII characters")
        if role not in {known.value for known in CallerRole}:
            raise Invalid(f"{where}: the role is none of {', '.join(known.value for known in CallerRole)}")
        if name is not None:
            check_plain(name if isinstance(name, str) else "", "name")
        return self._digest(token), Identity(CallerRole(role), name)


@lru_cache(maxsize=4096)
def _certificate(pem: bytes) -> tuple[Identity | None, float]:
    """Whom a verified client certificate names (O: the role, CN: the name), and when it ends (UNIX time in seconds)."""
    certificate = x509.load_pem_x509_certificate(pem)
    subject = certificate.subject
    roles = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    names = [str(attribute.value) for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    ends_s = certificate.not_valid_after_utc.timestamp()
    if len(roles) != 1 or len(names) > 1 or roles[0] not in {role.value for role in CallerRole}:
        return None, ends_s
    return Identity(CallerRole(roles[0]), names[0] if names else None), ends_s


class Gate:
    """Finds out who calls, and whether they may. `anonymous`: the role of callers without any credential; None: they are refused."""

    def __init__(
        self, *, tokens: Tokens | None = None, certificates: bool = False, anonymous: CallerRole | None = None, clock: Clock = SYSTEM
    ) -> None:
        """`certificates`: client certificates are demanded and verified by TLS."""
        self._tokens = tokens
        self._certificates = certificates
        self._anonymous = anonymous
        self._clock = clock

    def admit(self, method: str, context: Any) -> Identity:
        """The caller of `method` (`/package.Service/Method`). Raises `Unauthenticated`, `Denied`.

        A token says who somebody is before a certificate does: the certificate then only opens the connection.
        """
        allowed = ACCESS[method]
        if allowed is None:
            return Identity(CallerRole.READER)
        identity = self._by_token(context) or self._by_certificate(context)
        if identity is None:
            if self._anonymous is None:
                raise Unauthenticated(f"{method} was called without a credential", remedy="give a token or a client certificate")
            identity = Identity(self._anonymous)
        if identity.role not in allowed:
            names = ", ".join(sorted(role.value for role in allowed))
            raise Denied(f"{method} is not for the role {identity.role.value!r}", remedy=f"call it as one of: {names}")
        return identity

    def check_name(self, identity: Identity, name: str) -> None:
        """Raises `Denied` unless the caller may speak for the subscriber called `name`."""
        if identity.role is CallerRole.OPERATOR:
            return
        if identity.name is not None and identity.name != name:
            raise Denied(f"{identity.name!r} cannot speak for {name!r}", remedy="use the name that the credential has")
        if identity.name is None and self._tokens is not None and name in self._tokens.names:
            raise Denied(f"the name {name!r} belongs to another credential", remedy="take another name, or its own token")

    def _by_token(self, context: Any) -> Identity | None:
        given = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
        if not given:
            return None
        scheme = _BEARER
        if self._tokens is None:
            raise Unauthenticated("authorization was sent to a server without --tokens", remedy="send none, or start it with --tokens")
        if len(given) > 1 or not isinstance(given[0], str) or given[0][: len(scheme)].lower() != scheme:
            raise Unauthenticated("the authorization is not one bearer token", remedy="send one: Bearer TOKEN")
        identity = self._tokens.find(given[0][len(scheme) :].strip())
        if identity is None:
            raise Unauthenticated("the bearer token is not known", remedy="take one from the server's tokens file")
        return identity

    def _by_certificate(self, context: Any) -> Identity | None:
        if not self._certificates:
            return None
        pem = next(iter(context.auth_context().get("x509_pem_cert", ())), None)
        if pem is None:
            return None
        identity, ends_s = _certificate(pem)
        if ends_s <= self._clock.now_s():
            raise Unauthenticated("the client certificate has expired", remedy="renew it")
        if identity is None:
            raise Unauthenticated(
                "the client certificate names no role",
                remedy=f"issue one whose O is one of {', '.join(role.value for role in CallerRole)}, and whose CN is the caller's name",
            )
        return identity
