"""What the catalog takes and hands out. Everything in here was verified when it was read, or is about to be written."""

from dataclasses import dataclass, field

from weightsync.format.envelope import Envelope
from weightsync.format.moves import Move, MoveRef
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Form, Manifest, Payload, Shard

REPLACED = ""  # an etag that no store gives: this head is known to have been replaced


@dataclass(frozen=True)
class Head:
    """Where a channel points. `digest` and `nbytes` are the move's, `etag` the head object's (`REPLACED`: no longer the head).

    `expires_ms` takes the renewal into account; None never expires. `data` is the move's envelope, `renewal` the renewal's number (or 0).
    """

    move: Move
    digest: str
    nbytes: int
    etag: str
    expires_ms: int | None
    data: bytes = field(default=b"", repr=False)
    renewal: int = 0

    @property
    def version(self) -> VersionRef | None:
        """The version that the channel points to; None before the first."""
        return VersionRef(self.move.version, self.move.manifest.digest) if self.move.manifest else None

    @property
    def ref(self) -> MoveRef:
        """What the next move names as `previous`."""
        return MoveRef(self.move.sequence, self.move.write_id, self.digest)


@dataclass(frozen=True)
class Change:
    """What a move is to say, apart from where it stands in the history. `manifest` None: version 0, nothing yet."""

    channel: str
    epoch: int
    version: int
    manifest: Ref | None
    highest: int
    who: str
    why: str
    expires_ms: int | None


@dataclass(frozen=True)
class VersionRecord:
    """A verified manifest; `nbytes` is the size of its envelope."""

    manifest: Manifest
    ref: VersionRef
    nbytes: int


@dataclass(frozen=True)
class Claim:
    """The right to move `latest`, until somebody claims a higher epoch. `head` is the last move that this claim made."""

    epoch: int
    head: Head
    who: str

    @property
    def writer(self) -> str:
        """The name under which this claim's objects lie."""
        return str(self.epoch)


@dataclass(frozen=True)
class NewVersion:
    """A version to commit, all its objects but the records named by digest. `base` None: a snapshot, else the parent."""

    number: int
    parent: VersionRef | None
    base: VersionRef | None
    form: Form
    step: int | None
    layout: Ref
    root: str
    digests: Ref
    files: Ref
    shards: tuple[Shard, ...]
    checkpoint_bytes: int
    changed_lanes: int
    note: str = ""
    expires_ms: int | None = None


@dataclass(frozen=True)
class CommitPlan:
    """Signed records of a version about to be committed. `objects`: (key, bytes) of manifest, payload and log record.

    All of them, and everything they name, must stand in the store before the head is swapped.
    """

    record: VersionRecord
    payload: Payload
    move: Move
    envelope: Envelope = field(repr=False)  # the move's
    objects: tuple[tuple[str, bytes], ...] = field(repr=False)

    @property
    def ref(self) -> VersionRef:
        """The version."""
        return self.record.ref
