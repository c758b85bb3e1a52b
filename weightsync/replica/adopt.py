"""A checkpoint that lies on this host already may be a version: its root proves it, and nothing needs to be downloaded."""

import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Protocol

from weightsync.catalog import Catalog, VersionRecord
from weightsync.errors import WeightsyncError
from weightsync.format.layout import Chunk, Layout
from weightsync.format.refs import VersionRef
from weightsync.format.root import leaf_digest, root_digest
from weightsync.replica.parallel import batches
from weightsync.replica.replica import Replica

_log = logging.getLogger(__name__)
_READERS = 16
_TOGETHER = 64  # manifests read before their roots are looked at
MAX_LOOKED_AT = 10_000  # versions


class Readable(Protocol):
    """One state of the weights, cut as the run's versions are; read from many threads."""

    @property
    def layout(self) -> Layout:
        """The tensors."""
        ...

    def read(self, chunk: Chunk, into: memoryview) -> memoryview:
        """The bytes of a chunk, in `into` or elsewhere."""
        ...

    def check_unchanged(self) -> None:
        """Raises `Invalid` if it changed since it was opened."""
        ...


def adopt(
    replica: Replica, catalog: Catalog, source: Readable, *, wanted: VersionRecord | None = None, only: bool = False
) -> VersionRecord | None:
    """Makes `replica` hold the committed version that `source` is, and says which; None, with nothing changed, where it is none.

    Of several versions with the same weights it is `wanted`, or else the newest; `only`: no other than `wanted` will do.
    Raises `Invalid` when the source changes meanwhile, `NoSpace`, `Unavailable`.
    """
    leaves = _leaves(replica, source)
    record = _find(catalog, root_digest(source.layout, leaves), wanted, only=only)
    if record is None or replica.version == record.ref:
        return record
    layout = catalog.layout(record.manifest.layout)
    table = catalog.digests(record.manifest, layout)
    with replica.begin(record.ref, layout, table, fresh=True) as transition:

        def fill(numbers: range) -> None:
            for number in numbers:
                chunk = layout.chunks[number]
                transition.fill(number, source.read(chunk, memoryview(bytearray(chunk.nbytes))))

        for _ in replica.workers.map(fill, batches(layout)):
            pass
        source.check_unchanged()
        transition.finish()
    _log.info("version %d was on this host already", record.ref.version)
    return record


def _leaves(replica: Replica, source: Readable) -> bytes:
    layout = source.layout

    def digest(numbers: range) -> bytes:
        into = memoryview(bytearray(max(layout.chunks[n].nbytes for n in numbers)))
        return b"".join(leaf_digest(layout.leaf, source.read(layout.chunks[n], into)) for n in numbers)

    return b"".join(replica.workers.map(digest, batches(layout)))


def _find(catalog: Catalog, root: str, wanted: VersionRecord | None, *, only: bool) -> VersionRecord | None:
    if wanted is not None and wanted.manifest.root == root:
        return wanted
    if only:
        return None
    newest_first: Iterable[VersionRef] = reversed(catalog.committed()[-MAX_LOOKED_AT:])

    def read(ref: VersionRef) -> VersionRecord | None:
        try:
            return catalog.manifest_of(ref.version, ref.manifest)
        except WeightsyncError as error:  # collected, perhaps
            _log.info("version %d is not compared: %s", ref.version, error)
            return None

    refs = iter(newest_first)
    with ThreadPoolExecutor(_READERS, thread_name_prefix="weightsync-adopt") as pool:
        while together := list(islice(refs, _TOGETHER)):
            for record in pool.map(read, together):
                if record is not None and record.manifest.root == root:
                    return record
    return None
