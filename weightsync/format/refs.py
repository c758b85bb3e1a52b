"""How one record points to another object: always by digest and length, so that a reader knows what to expect."""

from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from weightsync.errors import Corrupt
from weightsync.format.fields import Fields

HEX_DIGEST = 64
WRITE_ID = 16  # hex digits


@dataclass(frozen=True)
class Ref:
    """An object by BLAKE3 (hexadecimal) and size. For a signed record the digest is its body's, the size the whole envelope's."""

    digest: str
    nbytes: int

    def to_body(self) -> dict[str, Any]:
        """JSON form."""
        return {"bytes": self.nbytes, "digest": self.digest}

    @classmethod
    def of(cls, data: bytes) -> "Ref":
        """The reference to `data`."""
        return cls(blake3(data).hexdigest(), len(data))

    @classmethod
    def take(cls, fields: Fields, name: str) -> "Ref":
        """Reads the field `name`."""
        inner = fields.object(name)
        ref = cls(inner.hex("digest", HEX_DIGEST), inner.integer("bytes"))
        inner.done()
        return ref

    def check(self, data: bytes | memoryview, what: str) -> None:
        """Raises `Corrupt` unless `data` is the object meant."""
        if len(data) != self.nbytes or blake3(data).hexdigest() != self.digest:
            raise Corrupt(
                f"{what} does not match its digest {self.digest[:12]}", remedy="fetch it again; if it stays, run `weightsync verify`"
            )


@dataclass(frozen=True)
class VersionRef:
    """A version by number and its manifest's digest."""

    version: int
    manifest: str

    def to_body(self) -> dict[str, Any]:
        """JSON form."""
        return {"manifest": self.manifest, "version": self.version}

    @classmethod
    def take(cls, fields: Fields, name: str) -> "VersionRef":
        """Reads the field `name`."""
        inner = fields.object(name)
        ref = cls(inner.integer("version", least=1), inner.hex("manifest", HEX_DIGEST))
        inner.done()
        return ref
