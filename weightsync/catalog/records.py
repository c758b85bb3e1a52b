"""Bytes from the store to records: digest first, then the policy, then the identity. Errors name the object."""

from collections.abc import Iterator
from contextlib import contextmanager

from weightsync.catalog.context import Context
from weightsync.catalog.values import Head, VersionRecord
from weightsync.errors import Corrupt, Unsupported
from weightsync.format.envelope import Envelope
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.moves import Move, MoveRef, Renewal, split_head
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Manifest, Payload
from weightsync.store.api import Object
from weightsync.trust import Role
from weightsync.trust.policy import role_of_channel


@contextmanager
def naming(ctx: Context, key: str) -> Iterator[None]:
    """Puts the object into the message of an error about its content."""
    try:
        yield
    except (Corrupt, Unsupported) as error:
        if key in error.message:
            raise
        raise type(error)(f"{ctx.name(key)}: {error.message}", remedy=error.remedy) from error


def fetch(ctx: Context, key: str) -> Envelope:
    """The record under `key`, its digest checked and nothing else. Raises `NotFound`, `Corrupt`."""
    return Envelope.parse(ctx.store.get(key, max_bytes=MAX_RECORD_BYTES).data, ctx.name(key))


def fetch_object(ctx: Context, key: str, ref: Ref, limit: int) -> bytes:
    """The object that `ref` means. Raises `NotFound`, `Corrupt`."""
    if ref.nbytes > limit:
        raise Corrupt(f"{ctx.name(key)} is said to have {ref.nbytes} bytes, more than {limit}")
    data = ctx.store.get(key, max_bytes=ref.nbytes).data
    ref.check(data, ctx.name(key))
    return data


def read_move(ctx: Context, channel: str, data: bytes, key: str) -> tuple[Move, Envelope]:
    """A move of `channel` from the bytes under `key`."""
    what = ctx.name(key)
    envelope = ctx.policy.check(Envelope.parse(data, what), role_of_channel(channel), what)
    with naming(ctx, key):
        return Move.from_envelope(envelope, run=ctx.run, channel=channel), envelope


def read_head(ctx: Context, channel: str, found: Object) -> Head:
    """A head object, its renewal included."""
    key = ctx.keys.head(channel)
    move_data, renewal_data = split_head(found.data)
    move, envelope = read_move(ctx, channel, move_data, key)
    if renewal_data is None:
        return Head(move, envelope.digest, len(move_data), found.etag, move.expires_ms, move_data)
    what = f"the renewal in {ctx.name(key)}"
    signed = ctx.policy.check(Envelope.parse(renewal_data, what), Role.FRESHNESS, what)
    with naming(ctx, key):
        renewal = Renewal.from_envelope(signed, run=ctx.run, move=envelope.digest)
    return Head(move, envelope.digest, len(move_data), found.etag, renewal.expires_ms, move_data, renewal.renewal)


def read_log(ctx: Context, channel: str, ref: MoveRef) -> Move:
    """The move that `ref` means, from the log. Raises `NotFound`, `Corrupt`."""
    key = ctx.keys.log(channel, ref.sequence, ref.write_id)
    move, envelope = read_move(ctx, channel, ctx.store.get(key, max_bytes=MAX_RECORD_BYTES).data, key)
    if (envelope.digest, move.sequence, move.write_id) != (ref.digest, ref.sequence, ref.write_id):
        raise Corrupt(f"{ctx.name(key)} is not the move that its successor names", remedy="restore it from a copy of the store")
    return move


def read_manifest(ctx: Context, ref: VersionRef) -> VersionRecord:
    """The manifest that `ref` means. Raises `NotFound`, `Corrupt`."""
    key = ctx.keys.manifest(ref.version)
    envelope = fetch(ctx, key)
    if envelope.digest != ref.manifest:
        raise Corrupt(
            f"{ctx.name(key)} is not the manifest {ref.manifest[:12]} that was committed", remedy="look for who writes to the store"
        )
    ctx.policy.check(envelope, Role.PUBLISHER, ctx.name(key))
    with naming(ctx, key):
        return VersionRecord(Manifest.from_envelope(envelope, run=ctx.run, version=ref.version), ref, len(envelope.data))


def read_payload(ctx: Context, key: str) -> Payload:
    """The payload under `key`, which must be where its own fields say. Raises `NotFound`, `Corrupt`."""
    envelope = ctx.policy.check(fetch(ctx, key), Role.PUBLISHER, ctx.name(key))
    with naming(ctx, key):
        payload = Payload.from_envelope(envelope, run=ctx.run)
    if ctx.keys.payload(payload.target.version, payload.base_version, payload.writer) != key:
        raise Corrupt(f"{ctx.name(key)} is the payload of version {payload.target.version} from {payload.base_version}, moved here")
    return payload
