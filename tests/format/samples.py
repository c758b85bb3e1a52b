"""One good record of every kind, with a reader for each, and ways to spoil them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from weightsync.format import canonical
from weightsync.format.dtypes import dtype_named
from weightsync.format.envelope import Envelope, seal
from weightsync.format.files import FileTable, NamedFile
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.format.moves import Move, MoveRef, Renewal
from weightsync.format.operators import Boundary, Lease, Pin, Run
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Form, Manifest, Payload, Shard

RUN = "run"
A, B, C, D = (letter * 64 for letter in "abcd")

MOVE = Move(
    RUN, "latest", 7, 3, 5, 6, Ref(A, 700), MoveRef(6, "0123456789abcdef", B), "fedcba9876543210", "host/1", "publish", 1_700_000_000_000, 9
)
FIRST_MOVE = Move(RUN, "latest", 1, 1, 0, 0, None, None, "fedcba9876543210", "host/1", "claim", 0)
RENEWAL = Renewal(RUN, A, 2, 1_800_000_000_000)
MANIFEST = Manifest(
    RUN, 5, VersionRef(4, C), 3, "3", 4, 50, Ref(A, 10), B, Ref(C, 20), Ref(D, 30), 1000, 300, 12, 1_700_000_000_000, "a note"
)
SNAPSHOT_MANIFEST = Manifest(RUN, 1, None, 1, "1", 0, None, Ref(A, 10), B, Ref(C, 20), Ref(D, 30), 1000, 900, 500, 0)
PAYLOAD = Payload(RUN, Form.DELTA, "3", VersionRef(5, A), VersionRef(4, C), (Shard(B, 10, 0, 3), Shard(C, 20, 4, 9)), 12, 1_700_000_000_000)
SNAPSHOT = Payload(RUN, Form.SNAPSHOT, "g0123456789abcdef", VersionRef(5, A), None, (), 0, 0)
RUN_RECORD = Run(RUN, "0123456789abcdef", "tiny", 1_700_000_000_000, ("a" * 32,))
BOUNDARY = Boundary(RUN, "0123456789abcdef", {"versions/3": 5}, ((1, 2), (4, 4)), ("payloads/9/0-g1",), {"keep": 16}, ("payloads/2/1-1",))
PIN = Pin(RUN, 5, "op", "the one in the paper", 1_700_000_000_000)
LEASE = Lease(RUN, "host-1", 5, 1_700_000_000_000)
LAYOUT = make_layout([Tensor("a", dtype_named("BF16"), (4, 2)), Tensor("b", dtype_named("F32"), ())], [("tied", "a")])
FILES = FileTable((NamedFile("config.json", Ref(A, 10)),), (NamedFile("model.safetensors", Ref(B, 20)),))


@dataclass(frozen=True)
class Sample:
    """A good value, its bytes (a record's body, or a table), and how they are read."""

    name: str
    value: Any
    data: bytes
    read: Callable[[bytes], Any]

    def __str__(self) -> str:
        return self.name


def _record(name: str, value: Any, read: Callable[[Envelope], Any]) -> Sample:
    return Sample(name, value, value.to_body(), lambda body: read(Envelope.parse(seal(body).data, name)))


SAMPLES = [
    _record("move", MOVE, lambda e: Move.from_envelope(e, run=RUN, channel="latest")),
    _record("first move", FIRST_MOVE, lambda e: Move.from_envelope(e, run=RUN, channel="latest")),
    _record("renewal", RENEWAL, lambda e: Renewal.from_envelope(e, run=RUN, move=A)),
    _record("manifest", MANIFEST, lambda e: Manifest.from_envelope(e, run=RUN, version=5)),
    _record("snapshot's manifest", SNAPSHOT_MANIFEST, lambda e: Manifest.from_envelope(e, run=RUN, version=1)),
    _record("payload", PAYLOAD, lambda e: Payload.from_envelope(e, run=RUN)),
    _record("snapshot", SNAPSHOT, lambda e: Payload.from_envelope(e, run=RUN)),
    _record("run", RUN_RECORD, lambda e: Run.from_envelope(e, run=RUN)),
    _record("boundary", BOUNDARY, lambda e: Boundary.from_envelope(e, run=RUN)),
    _record("pin", PIN, lambda e: Pin.from_envelope(e, run=RUN)),
    _record("lease", LEASE, lambda e: Lease.from_envelope(e, run=RUN)),
    Sample("layout", LAYOUT, LAYOUT.to_bytes(), Layout.parse),
    Sample("files", FILES, FILES.to_bytes(), FileTable.parse),
]


def objects(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all JSON objects inside `value` whose keys are fields."""
    if isinstance(value, dict):
        yield path
        for name, inner in value.items():
            if name not in DATA:
                yield from objects(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from objects(inner, (*path, number))


DATA = {"marked", "policy"}  # objects whose keys are not fields


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def fields(sample: Sample) -> Iterator[tuple[tuple[Any, ...], str]]:
    """(path of the object, name) of every field."""
    value = canonical.parse(sample.data, sample.name)
    for path in objects(value):
        for name in at(value, path):
            yield path, name


def spoilt(sample: Sample, path: tuple[Any, ...], change: Callable[[dict[str, Any]], None]) -> bytes:
    """The sample's bytes after `change` was made to the object at `path`."""
    value = canonical.parse(sample.data, sample.name)
    change(at(value, path))
    return canonical.to_bytes(value)
