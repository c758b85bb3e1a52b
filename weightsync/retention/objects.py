"""Everything that versions consist of, object by object, each with what proves its bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from weightsync.catalog import Catalog, VersionRecord
from weightsync.errors import Corrupt
from weightsync.format.envelope import Envelope
from weightsync.format.files import FileTable
from weightsync.format.limits import MAX_RECORD_BYTES
from weightsync.format.moves import Move, MoveRef
from weightsync.format.operators import Run
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Manifest, Payload
from weightsync.trust import Role
from weightsync.trust.policy import role_of_channel

Check = Callable[[bytes], object]


@dataclass(frozen=True)
class Item:
    """An object. `check` raises `Corrupt` unless it is given the right bytes; `ref`: what it is, where that is known beforehand."""

    key: str
    check: Check
    ref: Ref | None = None

    @property
    def max_bytes(self) -> int:
        """More are never read."""
        return self.ref.nbytes if self.ref else MAX_RECORD_BYTES


def blob(key: str, ref: Ref) -> Item:
    """An object that is named by its content."""
    return Item(key, lambda data: ref.check(data, repr(key)), ref)


def run_item(catalog: Catalog) -> Item:
    """The run's own record."""
    key, run = catalog.keys.run_record, catalog.keys.run
    return _record(catalog, key, Role.PUBLISHER, lambda envelope: Run.from_envelope(envelope, run=run))


def move_item(catalog: Catalog, channel: str, ref: MoveRef) -> Item:
    """A move in the log."""
    key, run = catalog.keys.log(channel, ref.sequence, ref.write_id), catalog.keys.run

    def read(envelope: Envelope) -> None:
        _same(envelope.digest == ref.digest, key)
        Move.from_envelope(envelope, run=run, channel=channel)

    return _record(catalog, key, role_of_channel(channel), read)


def manifest_item(catalog: Catalog, ref: VersionRef) -> Item:
    """The manifest of a version."""
    key, run = catalog.keys.manifest(ref.version), catalog.keys.run

    def read(envelope: Envelope) -> None:
        _same(envelope.digest == ref.manifest, key)
        Manifest.from_envelope(envelope, run=run, version=ref.version)

    return _record(catalog, key, Role.PUBLISHER, read)


def payload_item(catalog: Catalog, record: VersionRecord, base: int, writer: str) -> Item:
    """The record of a payload, whatever it says of its shards."""
    key, run = catalog.keys.payload(record.ref.version, base, writer), catalog.keys.run

    def read(envelope: Envelope) -> None:
        payload = Payload.from_envelope(envelope, run=run)
        _same((payload.target, payload.base_version, payload.writer) == (record.ref, base, writer), key)

    return _record(catalog, key, Role.PUBLISHER, read)


def shard_items(catalog: Catalog, payload: Payload) -> Iterator[Item]:
    """The shards of a payload."""
    for shard in payload.shards:
        yield blob(catalog.keys.shard(payload.writer, payload.target.version, payload.base_version, shard.digest), shard.ref)


def state_items(catalog: Catalog, record: VersionRecord) -> Iterator[Item]:
    """Layout, leaves and table of files of a version."""
    keys, manifest = catalog.keys, record.manifest
    yield blob(keys.layout(manifest.layout.digest), manifest.layout)
    yield blob(keys.digests(manifest.writer, manifest.version, manifest.digests.digest), manifest.digests)
    yield blob(keys.file(manifest.files.digest), manifest.files)


def file_items(catalog: Catalog, table: FileTable) -> Iterator[Item]:
    """Small files and safetensors headers."""
    for file in (*table.small, *table.tensors):
        yield blob(catalog.keys.file(file.ref.digest), file.ref)


def _record(catalog: Catalog, key: str, role: Role, read: Callable[[Envelope], object]) -> Item:
    def check(data: bytes) -> None:
        read(catalog.policy.check(Envelope.parse(data, repr(key)), role, repr(key)))

    return Item(key, check)


def _same(is_it: bool, key: str) -> None:
    if not is_it:
        raise Corrupt(f"{key!r} is not the record that was committed")
