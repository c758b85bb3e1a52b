"""Damage behind the digests: a shard or a record was changed and every digest above it made good.

A shard must then fail to decode, miss a leaf, or give the right bytes all the same; the image goes back to what it was. A record, a layout
or a table that is sealed again must be refused with a typed error or be another well-formed one; no other exception may come out.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.e2e.damage import RUN, Stage, open_catalog, store_of
from weightsync.catalog import VersionRecord
from weightsync.errors import WeightsyncError
from weightsync.format.envelope import Envelope, seal
from weightsync.format.files import FileTable
from weightsync.format.layout import Layout
from weightsync.format.moves import Move
from weightsync.format.operators import Run
from weightsync.format.safetensors import parse_header
from weightsync.format.shard import parse_shard
from weightsync.format.versions import Form, Manifest, Payload
from weightsync.replica.fetch import ShardSource
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.store.memory import MemoryStore

Note = Callable[[str, str | None, str], None]


def behind(home: Path, stage: Stage, note: Note, stride: int) -> None:
    """The shards of a version, then all that came with it."""
    _shards(home / str(stage.version), stage, note, stride)
    for key in stage.new:
        _record(key, stage.objects[key], note, stride)


def flipped(data: bytes, stride: int) -> Iterator[tuple[int, bytes]]:
    """Every `stride`-th bit."""
    for bit in range(len(data) % stride, len(data) * 8, stride):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(changed)


def _shards(home: Path, stage: Stage, note: Note, stride: int) -> None:
    store = store_of(stage.objects)
    catalog = open_catalog(store)
    record = catalog.manifest_of(stage.version)
    payload = catalog.payload(record, record.manifest.base, record.manifest.writer)
    with Replica(home / "held", threads=1) as held, Replica(home / "right", threads=1) as right:
        update(right, catalog, record, ShardSource(catalog))
        if payload.base is not None:
            update(held, catalog, catalog.manifest_of(payload.base.version), ShardSource(catalog))
        before = bytes(held.image.data) if held.version else b""
        for shard in payload.shards:
            key = catalog.keys.shard(payload.writer, stage.version, payload.base_version, shard.digest)
            for bit, changed in flipped(stage.objects[key], stride):
                kind = _apply(held, right, store, record, payload, changed)
                note("behind (shards)", kind, f"{key} bit {bit}")
                if held.version and bytes(held.image.data) != before:
                    note("behind (shards)", "the image did not go back", f"{key} bit {bit}")


def _apply(held: Replica, right: Replica, store: MemoryStore, record: VersionRecord, payload: Payload, data: bytes) -> str | None:  # noqa: PLR0917
    """The kind of the refusal. Right bytes in every chunk that was made are as good; anything else is None, which is noted as accepted."""
    catalog = open_catalog(store)
    layout = catalog.layout(record.manifest.layout)
    table = catalog.digests(record.manifest, layout)
    transition = held.begin(record.ref, layout, table, fresh=payload.form is Form.SNAPSHOT)
    try:
        frames = parse_shard(memoryview(data), len(layout.chunks))
        for number, frame in frames:
            transition.apply(number, frame)
        same = all(transition.image.chunk(number) == right.image.chunk(number) for number, _ in frames)
    except WeightsyncError as error:
        return error.kind
    finally:
        transition.abort()
    return "corrupt" if same else None


def _record(key: str, data: bytes, note: Note, stride: int) -> None:
    body = Envelope.parse(data, key).body if data.startswith(b'{"body":') else data
    for bit, changed in flipped(body, stride):
        kind = "corrupt"
        try:
            _parse(key, changed)
        except WeightsyncError:
            pass
        except Exception as error:  # noqa: BLE001  any other exception is what this looks for
            kind = repr(error)
        note("behind (records)", kind, f"{key} bit {bit}")


def _parse(key: str, data: bytes) -> None:
    if key.endswith(("/head", "/manifest", "/run.json")) or "/log/" in key or "/payloads/" in key:
        envelope = seal(data)
        if key.endswith("/manifest"):
            Manifest.from_envelope(envelope, run=RUN, version=int(key.split("/")[2]))
        elif "/payloads/" in key:
            Payload.from_envelope(envelope, run=RUN)
        elif key.endswith("/run.json"):
            Run.from_envelope(envelope, run=RUN)
        else:
            Move.from_envelope(envelope, run=RUN, channel=key.split("/")[2])
    elif "/layouts/" in key:
        layout = Layout.parse(data)
        layout.image_bytes  # noqa: B018  computed when asked for
    elif "/files/" in key and data.startswith(b'{"format"'):
        FileTable.parse(data)
    elif "/files/" in key:
        parse_header(data, None, "a header")
