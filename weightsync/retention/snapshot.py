"""Writes a snapshot of a version that is committed already, so that the chain behind it can go.

Every frame is decoded again and compared with the leaf of the version before it is uploaded: what it replaces is deleted later.
"""

from collections.abc import Iterator
from itertools import islice

from weightsync.catalog import Catalog, NewPayload, VersionRecord
from weightsync.codec import decode, encode_snapshot
from weightsync.codec.api import Changes
from weightsync.errors import Corrupt, Invalid
from weightsync.format.digests import DigestTable
from weightsync.format.packing import SHARD_BYTES, pack
from weightsync.format.root import leaf_digest
from weightsync.format.versions import Form, Payload
from weightsync.replica.image import Image, describe_chunk
from weightsync.replica.parallel import batches
from weightsync.replica.replica import Replica
from weightsync.retention.survey import COLLECTOR
from weightsync.store.settle import ensure

Frames = list[tuple[int, bytes]]


def write_snapshot(catalog: Catalog, record: VersionRecord, replica: Replica, *, shard_bytes: int = SHARD_BYTES) -> Payload:
    """Adds a snapshot of the version that `replica` holds, under a collector's name of its own.

    Raises `Invalid` where the replica holds something else, `Compacted` where the version is marked or condemned, `Denied` without a
    publisher key, and what the store raises; what was uploaded by then is a leftover, which a later collection finds.
    """
    table = replica.table
    if replica.version != record.ref or table is None:
        raise Invalid(f"the replica does not hold version {record.ref.version}", remedy="bring it there first")
    catalog.check_kept(record.ref.version)
    writer = COLLECTOR + catalog.new_id()
    shards = []
    for shard, data in pack(_frames(replica, replica.image, table), shard_bytes=shard_bytes):
        ensure(catalog.store, catalog.keys.shard(writer, record.ref.version, 0, shard.digest), data, clock=catalog.clock)
        shards.append(shard)
    return catalog.add_payload(record, NewPayload(writer, None, Form.SNAPSHOT, tuple(shards), replica.image.layout.lanes))


def _frames(replica: Replica, image: Image, table: DigestTable) -> Iterator[Frames]:
    """Batches of frames, in order; a few at a time are made in parallel."""
    todo = batches(image.layout)
    while window := list(islice(todo, replica.workers.threads)):
        yield from replica.workers.map(lambda numbers: [(number, _frame(image, table, number)) for number in numbers], window)


def _frame(image: Image, table: DigestTable, number: int) -> bytes:
    layout = image.layout
    chunk = layout.chunks[number]
    dtype = layout.tensors[chunk.tensor].dtype
    frame = encode_snapshot(dtype, image.chunk(number), first_lane=chunk.start_lane).frame
    found = decode(dtype, frame, None, chunk.lanes)
    if isinstance(found, Changes) or leaf_digest(layout.leaf, found.data) != table.leaf(layout, number):
        raise Corrupt(f"the frame of {describe_chunk(layout, number)} does not decode to what it was made of", remedy="suspect the memory")
    return frame
