"""What a replica's directory claims to hold: one small sealed record, replaced by rename.

    image-<id>       the weights, in the order and at the offsets of the layout
    layout-<digest>  the layout's bytes
    table-<digest>   leaves and sums of the version held
    state            names the first three and the version; nothing that it does not name is used
    journal          only while an image is being changed in place: how to go back
    past-<number>    what tells a version held before from the next one (see `past`)
    change-<id>      what engines of this host are being changed by (see `engine.change`); left by a killed process: removed
    lock, readers    advisory locks: one writer; readers against changes in place

The record carries its own digest, so a flipped bit is noticed; that the image is what it claims is only ever believed after hashing it.
"""

import re
from dataclasses import dataclass
from typing import Any

from weightsync.errors import Corrupt, WeightsyncError
from weightsync.format import canonical
from weightsync.format.envelope import Envelope, seal
from weightsync.format.fields import Fields
from weightsync.format.refs import HEX_DIGEST, VersionRef

STATE = "state"
JOURNAL = "journal"
PAST_PREFIX = "past-"
CHANGE_PREFIX = "change-"
LOCK = "lock"
READERS = "readers"
IMAGE_PREFIX, LAYOUT_PREFIX, TABLE_PREFIX = "image-", "layout-", "table-"
MAX_STATE_BYTES = 4096
_IMAGE = re.compile(r"image-[0-9a-f]{16}")
_FORMAT = 1


@dataclass(frozen=True)
class State:
    """A version held: `image` is a file's name, `layout` and `table` are digests of the files named after them.

    `root` is what the table's leaves make up with the layout.
    """

    version: VersionRef
    image: str
    layout: str
    table: str
    root: str

    @property
    def files(self) -> frozenset[str]:
        """Names of the files that belong to it."""
        return frozenset({self.image, LAYOUT_PREFIX + self.layout, TABLE_PREFIX + self.table})

    def to_bytes(self) -> bytes:
        """What is written."""
        body: dict[str, Any] = {
            "format": _FORMAT,
            "image": self.image,
            "kind": "replica",
            "layout": self.layout,
            "root": self.root,
            "table": self.table,
            "version": self.version.to_body(),
        }
        return seal(canonical.to_bytes(body)).data

    @property
    def digest(self) -> str:
        """Identifies this state; a journal names the one that it leads back to."""
        return Envelope.parse(self.to_bytes(), STATE).digest

    @classmethod
    def parse(cls, data: bytes) -> "State":
        """Raises `Corrupt` for anything but bytes that `to_bytes` made."""
        try:
            fields = Fields(Envelope.parse(data, "the state of the replica").value("state"), "the state of the replica")
            fields.constant("kind", "replica")
            fields.constant("format", _FORMAT)
            state = cls(
                version=VersionRef.take(fields, "version"),
                image=fields.text("image"),
                layout=fields.hex("layout", HEX_DIGEST),
                table=fields.hex("table", HEX_DIGEST),
                root=fields.hex("root", HEX_DIGEST),
            )
            fields.done()
        except WeightsyncError as error:
            raise Corrupt(error.message) from error
        if not _IMAGE.fullmatch(state.image):
            raise Corrupt(f"the state of the replica names the image {state.image[:40]!r}")
        return state
