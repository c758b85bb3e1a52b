"""A further way to a version that is committed already: a fold or a snapshot, made by a publisher or by the collector.

catalog.check_kept(version)                     before the work
... upload the shards under keys.shard(writer, version, base, digest) ...
catalog.add_payload(record, NewPayload(writer, base, form, shards, changed_lanes))
"""

from dataclasses import dataclass

from weightsync.catalog.boundary import look, looked_after
from weightsync.catalog.context import Context
from weightsync.catalog.signing import sealed
from weightsync.catalog.values import VersionRecord
from weightsync.errors import Invalid
from weightsync.format.keys import payload_name
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Form, Payload, Shard
from weightsync.trust import Role


@dataclass(frozen=True)
class NewPayload:
    """What is to be added. `writer`: the publisher's epoch, or `g` and a write id for the collector. `base` None: a snapshot."""

    writer: str
    base: VersionRef | None
    form: Form
    shards: tuple[Shard, ...]
    changed_lanes: int


def add_payload(ctx: Context, record: VersionRecord, new: NewPayload) -> Payload:
    """Writes the payload's record, all of whose shards stand. Looks for the collector before and after; on a hit takes it back.

    Raises `Compacted` when the version or this very payload is marked or condemned, `Denied` without a publisher key, `AlreadyExists`.
    """
    if new.form is Form.DELTA:
        raise Invalid(f"the delta of version {record.ref.version} is its first payload; only folds and snapshots can be added")
    payload = Payload(ctx.run, new.form, new.writer, record.ref, new.base, new.shards, new.changed_lanes, ctx.now_ms())
    envelope = sealed(ctx, payload.to_body, Role.PUBLISHER, lambda e: Payload.from_envelope(e, run=ctx.run))
    version, base = record.ref.version, payload.base_version
    key, names = ctx.keys.payload(version, base, new.writer), (payload_name(version, base, new.writer),)
    look(ctx, version, names=names)
    ctx.ensure(key, envelope.data)
    looked_after(ctx, version, lambda: ctx.store.delete(key), names=names)
    return payload
