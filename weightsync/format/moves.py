"""The move of a channel: the only thing that is ever swapped, and its renewal."""

from dataclasses import dataclass
from typing import Any

from weightsync.errors import Corrupt
from weightsync.format import canonical
from weightsync.format.envelope import Envelope
from weightsync.format.fields import Fields
from weightsync.format.limits import FORMAT_VERSION
from weightsync.format.refs import HEX_DIGEST, WRITE_ID, Ref


@dataclass(frozen=True)
class MoveRef:
    """The move before this one: `sequence` and `write_id` make its log key, `digest` proves it."""

    sequence: int
    write_id: str
    digest: str

    def to_body(self) -> dict[str, Any]:
        """JSON form."""
        return {"digest": self.digest, "sequence": self.sequence, "write_id": self.write_id}

    @classmethod
    def take(cls, fields: Fields, name: str) -> "MoveRef":
        """Reads the field `name`."""
        inner = fields.object(name)
        ref = cls(inner.integer("sequence", least=1), inner.hex("write_id", WRITE_ID), inner.hex("digest", HEX_DIGEST))
        inner.done()
        return ref


@dataclass(frozen=True)
class Move:
    """A channel now points to `version` (0: nothing yet). Sequence + 1 on every move; `highest` is the highest committed version."""

    run: str
    channel: str
    sequence: int
    epoch: int
    version: int
    highest: int
    manifest: Ref | None
    previous: MoveRef | None
    write_id: str
    who: str
    why: str
    created_ms: int
    expires_ms: int | None = None

    def to_body(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "channel": self.channel,
                "created_ms": self.created_ms,
                "epoch": self.epoch,
                "expires_ms": self.expires_ms,
                "format": FORMAT_VERSION,
                "highest": self.highest,
                "kind": "move",
                "manifest": self.manifest.to_body() if self.manifest else None,
                "previous": self.previous.to_body() if self.previous else None,
                "run": self.run,
                "sequence": self.sequence,
                "version": self.version,
                "who": self.who,
                "why": self.why,
                "write_id": self.write_id,
            }
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope, *, run: str, channel: str) -> "Move":
        """Reads a move of this run and channel. Raises `Corrupt`, `Unsupported`."""
        what = f"move of channel {channel!r}"
        fields = Fields(envelope.value(what), what)
        fields.constant("kind", "move")
        fields.constant("format", FORMAT_VERSION)
        move = cls(
            run=fields.text("run"),
            channel=fields.text("channel"),
            sequence=fields.integer("sequence", least=1),
            epoch=fields.integer("epoch"),
            version=fields.integer("version"),
            highest=fields.integer("highest"),
            manifest=fields.optional("manifest", lambda name: Ref.take(fields, name)),
            previous=fields.optional("previous", lambda name: MoveRef.take(fields, name)),
            write_id=fields.hex("write_id", WRITE_ID),
            who=fields.text("who"),
            why=fields.text("why"),
            created_ms=fields.integer("created_ms"),
            expires_ms=fields.optional("expires_ms", fields.integer),
        )
        fields.done()
        move._check(run, channel)
        return move

    def _check(self, run: str, channel: str) -> None:
        if (self.run, self.channel) != (run, channel):
            raise Corrupt(
                f"a move of run {self.run!r}, channel {self.channel!r} stands where run {run!r}, channel {channel!r} was asked for"
            )
        if (self.version == 0) != (self.manifest is None) or self.version > self.highest:
            raise Corrupt(f"move {self.sequence} of channel {channel!r} contradicts itself")
        if (self.sequence == 1) != (self.previous is None) or (self.previous and self.previous.sequence != self.sequence - 1):
            raise Corrupt(f"move {self.sequence} of channel {channel!r} does not follow its predecessor")


@dataclass(frozen=True)
class Renewal:
    """Keeps a move fresh without a new sequence; signed by the freshness key over the move's digest."""

    run: str
    move: str
    renewal: int
    expires_ms: int

    def to_body(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "expires_ms": self.expires_ms,
                "format": FORMAT_VERSION,
                "kind": "renewal",
                "move": self.move,
                "renewal": self.renewal,
                "run": self.run,
            }
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope, *, run: str, move: str) -> "Renewal":
        """Reads the renewal of the move with digest `move`. Raises `Corrupt`."""
        fields = Fields(envelope.value("renewal"), "renewal")
        fields.constant("kind", "renewal")
        fields.constant("format", FORMAT_VERSION)
        found = cls(fields.text("run"), fields.hex("move", HEX_DIGEST), fields.integer("renewal", least=1), fields.integer("expires_ms"))
        fields.done()
        if (found.run, found.move) != (run, move):
            raise Corrupt("a renewal belongs to another move")
        return found


def join_head(move: bytes, renewal: bytes | None = None) -> bytes:
    """A head object: the move's envelope, and after a line feed its renewal's."""
    return move if renewal is None else move + b"\n" + renewal


def split_head(data: bytes) -> tuple[bytes, bytes | None]:
    """The envelopes of a head object: the move's, and the renewal's if there is one. Canonical JSON holds no line feed."""
    move, line_feed, renewal = data.partition(b"\n")
    return move, renewal if line_feed else None
