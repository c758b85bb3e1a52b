"""Reading versions for display: which one is meant, and what is said of it."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from weightsync.errors import Compacted, Invalid, NotFound

if TYPE_CHECKING:
    from weightsync.catalog import Catalog, VersionRecord
    from weightsync.format.refs import VersionRef

READERS = 16


def resolve(catalog: "Catalog", text: str) -> "VersionRecord":
    """The version that `text` means: a number, or a channel for where it points. Raises `NotFound`, `Compacted`, `Invalid`."""
    ref = _ref(catalog, text)
    return catalog.manifest_of(ref.version, ref.manifest)


def _ref(catalog: "Catalog", text: str) -> "VersionRef":
    if text.isascii() and text.isdigit():
        return catalog.find(int(text))
    if text.startswith("-"):
        raise Invalid(f"{text!r} is no version", remedy="give a number from `weightsync versions`, or a channel such as latest")
    head = catalog.head(text)
    if head is None or head.version is None:
        catalog.run()
        raise NotFound(f"channel {text!r} points to nothing", remedy="`weightsync versions` shows versions and channels")
    return head.version


def records(catalog: "Catalog", refs: Iterable["VersionRef"]) -> list["VersionRecord | None"]:
    """Manifests in order, read in parallel; None for a version that was collected."""
    boundary, _ = catalog.boundary()

    def read(ref: "VersionRef") -> "VersionRecord | None":
        if boundary is not None and boundary.condemned(ref.version):
            return None
        try:
            return catalog.manifest_of(ref.version, ref.manifest)
        except Compacted:
            return None

    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(read, refs))


def channels(catalog: "Catalog") -> dict[str, int]:
    """Where each channel points; channels without a version are left out."""
    found = {name: catalog.head(name) for name in catalog.channels()}
    return {name: head.move.version for name, head in found.items() if head and head.version}


def summary(record: "VersionRecord", lanes: int) -> dict[str, Any]:
    """A version as `versions` and `show` give it with `--json`. `lanes` are those of its layout."""
    manifest = record.manifest
    return {
        "version": manifest.version,
        "step": manifest.step,
        "epoch": manifest.epoch,
        "parent": manifest.parent.version if manifest.parent else None,
        "base": manifest.base,
        "form": "delta" if manifest.base else "snapshot",
        "changed_lanes": manifest.changed_lanes,
        "lanes": lanes,
        "changed": manifest.changed_lanes / lanes if lanes else 0.0,
        "payload_bytes": manifest.payload_bytes,
        "checkpoint_bytes": manifest.checkpoint_bytes,
        "payload_ratio": manifest.checkpoint_bytes / manifest.payload_bytes if manifest.payload_bytes else None,
        "created": datetime.fromtimestamp(manifest.created_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "root": manifest.root,
        "manifest": record.ref.manifest,
        "note": manifest.note,
    }
