"""What a version is (manifest) and how it can be reached (payload)."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from weightsync.errors import Corrupt, Unsupported
from weightsync.format import canonical
from weightsync.format.envelope import Envelope
from weightsync.format.fields import Fields
from weightsync.format.limits import FORMAT_VERSION, MAX_SHARD_BYTES
from weightsync.format.refs import HEX_DIGEST, Ref, VersionRef


class Form(Enum):
    """How a payload reaches its target."""

    DELTA = "delta"  # from the parent
    FOLD = "fold"  # from an older version
    SNAPSHOT = "snapshot"  # from nothing


@dataclass(frozen=True)
class Shard:
    """An object of frames for the chunks `first` to `last`, both included (not all of them need a frame)."""

    digest: str
    nbytes: int
    first: int
    last: int

    def to_body(self) -> dict[str, Any]:
        """JSON form."""
        return {"bytes": self.nbytes, "digest": self.digest, "first": self.first, "last": self.last}

    @classmethod
    def read(cls, fields: Fields) -> "Shard":
        """Reads one entry of a payload."""
        shard = cls(fields.hex("digest", HEX_DIGEST), fields.integer("bytes", least=1), fields.integer("first"), fields.integer("last"))
        fields.done()
        if shard.nbytes > MAX_SHARD_BYTES or shard.first > shard.last:
            raise Corrupt(f"shard {shard.digest[:12]} has impossible bounds")
        return shard

    @property
    def ref(self) -> Ref:
        """The object itself."""
        return Ref(self.digest, self.nbytes)


@dataclass(frozen=True)
class Payload:
    """One way to reach `target` from `base` (None: from nothing). A chunk without a frame is the base's."""

    run: str
    form: Form
    writer: str
    target: VersionRef
    base: VersionRef | None
    shards: tuple[Shard, ...]
    changed_lanes: int
    created_ms: int

    @property
    def base_version(self) -> int:
        """0 for a snapshot."""
        return self.base.version if self.base else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.nbytes for shard in self.shards)

    def to_body(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "base": self.base.to_body() if self.base else None,
                "changed_lanes": self.changed_lanes,
                "created_ms": self.created_ms,
                "form": self.form.value,
                "format": FORMAT_VERSION,
                "kind": "payload",
                "run": self.run,
                "shards": [shard.to_body() for shard in self.shards],
                "target": self.target.to_body(),
                "writer": self.writer,
            }
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope, *, run: str) -> "Payload":
        """Reads a payload of this run. Raises `Corrupt`, `Unsupported`."""
        fields = Fields(envelope.value("payload"), "payload")
        fields.constant("kind", "payload")
        fields.constant("format", FORMAT_VERSION)
        payload = cls(
            run=fields.text("run"),
            form=_form(fields.text("form")),
            writer=fields.text("writer", max_chars=32),
            target=VersionRef.take(fields, "target"),
            base=fields.optional("base", lambda name: VersionRef.take(fields, name)),
            shards=tuple(Shard.read(entry) for entry in fields.objects("shards")),
            changed_lanes=fields.integer("changed_lanes"),
            created_ms=fields.integer("created_ms"),
        )
        fields.done()
        if payload.run != run:
            raise Corrupt(f"a payload of run {payload.run!r} stands in run {run!r}")
        if (payload.form is Form.SNAPSHOT) != (payload.base is None) or payload.base_version == payload.target.version:
            raise Corrupt(f"payload {payload.target.version} from {payload.base_version} contradicts its form {payload.form.value}")
        if any(a.last >= b.first for a, b in zip(payload.shards, payload.shards[1:], strict=False)):
            raise Corrupt(f"shards of payload {payload.target.version} overlap or are out of order")
        return payload


@dataclass(frozen=True)
class Manifest:
    """The state of one version. `writer` made it and its first payload, which starts from `base` (0: a snapshot)."""

    run: str
    version: int
    parent: VersionRef | None
    epoch: int
    writer: str
    base: int
    step: int | None
    layout: Ref
    root: str
    digests: Ref
    files: Ref
    checkpoint_bytes: int
    payload_bytes: int
    changed_lanes: int
    created_ms: int
    note: str = ""

    def to_body(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "base": self.base,
                "changed_lanes": self.changed_lanes,
                "checkpoint_bytes": self.checkpoint_bytes,
                "created_ms": self.created_ms,
                "digests": self.digests.to_body(),
                "epoch": self.epoch,
                "files": self.files.to_body(),
                "format": FORMAT_VERSION,
                "kind": "manifest",
                "layout": self.layout.to_body(),
                "note": self.note,
                "parent": self.parent.to_body() if self.parent else None,
                "payload_bytes": self.payload_bytes,
                "root": self.root,
                "run": self.run,
                "step": self.step,
                "version": self.version,
                "writer": self.writer,
            }
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope, *, run: str, version: int) -> "Manifest":
        """Reads the manifest of this version of this run. Raises `Corrupt`, `Unsupported`."""
        what = f"manifest of version {version}"
        fields = Fields(envelope.value(what), what)
        fields.constant("kind", "manifest")
        fields.constant("format", FORMAT_VERSION)
        manifest = cls(
            run=fields.text("run"),
            version=fields.integer("version", least=1),
            parent=fields.optional("parent", lambda name: VersionRef.take(fields, name)),
            epoch=fields.integer("epoch", least=1),
            writer=fields.text("writer", max_chars=32),
            base=fields.integer("base"),
            step=fields.optional("step", fields.integer),
            layout=Ref.take(fields, "layout"),
            root=fields.hex("root", HEX_DIGEST),
            digests=Ref.take(fields, "digests"),
            files=Ref.take(fields, "files"),
            checkpoint_bytes=fields.integer("checkpoint_bytes"),
            payload_bytes=fields.integer("payload_bytes"),
            changed_lanes=fields.integer("changed_lanes"),
            created_ms=fields.integer("created_ms"),
            note=fields.text("note"),
        )
        fields.done()
        if (manifest.run, manifest.version) != (run, version):
            raise Corrupt(f"{what} is that of version {manifest.version} of run {manifest.run!r}")
        if manifest.parent is not None and manifest.parent.version >= version:
            raise Corrupt(f"{what} grows from version {manifest.parent.version}, which is not older")
        if manifest.base and (manifest.parent is None or manifest.base != manifest.parent.version):
            raise Corrupt(f"{what} has a first payload that does not start from its parent")
        return manifest


def _form(value: str) -> Form:
    try:
        return Form(value)
    except ValueError:
        raise Unsupported(f"payload of form {value[:40]!r}", remedy="upgrade weightsync") from None
