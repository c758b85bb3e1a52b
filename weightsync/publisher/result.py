"""What a publish amounts to."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weightsync.format.refs import VersionRef
from weightsync.format.versions import Form


@dataclass(frozen=True)
class Published:
    """A committed version.

    `payload_bytes` are its shards; `uploaded` everything that it added to the store, in bytes by kind (shards, digests, records, layout,
    files, head). `seconds` by phase: base, encode (reading, uploading and checking go on meanwhile), commit, promote.
    `notes`: what a person should know, such as why it is a snapshot.
    """

    ref: VersionRef
    step: int | None
    form: Form
    changed_lanes: int
    lanes: int
    checkpoint_bytes: int
    payload_bytes: int
    shards: int
    uploaded: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        """Its number."""
        return self.ref.version

    @property
    def total_bytes(self) -> int:
        """Everything that it added to the store."""
        return sum(self.uploaded.values())

    @property
    def ratio(self) -> float:
        """Bytes of the checkpoint over all bytes added."""
        return self.checkpoint_bytes / max(1, self.total_bytes)

    @property
    def payload_ratio(self) -> float | None:
        """Bytes of the checkpoint over those of its shards, as `versions` and `status` show it; None where no byte had to be sent."""
        return self.checkpoint_bytes / self.payload_bytes if self.payload_bytes else None

    @property
    def changed_fraction(self) -> float:
        """Changed lanes over all lanes."""
        return self.changed_lanes / max(1, self.lanes)
