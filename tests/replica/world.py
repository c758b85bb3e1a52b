"""A small publisher over the catalog alone: what a replica follows in tests."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from weightsync.catalog import Catalog, Claim, NewVersion, VersionRecord
from weightsync.codec import chunk_sum, encode_delta, encode_snapshot
from weightsync.format.digests import DigestTable
from weightsync.format.dtypes import DTYPES
from weightsync.format.files import FileTable, NamedFile
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.format.refs import Ref
from weightsync.format.root import leaf_digest, root_digest
from weightsync.format.safetensors import Header
from weightsync.format.shard import pack_shard
from weightsync.format.versions import Form, Shard
from weightsync.store.api import ObjectStore

Weights = dict[str, bytes]


def sample_layout(chunk_lanes: int = 1024) -> Layout:
    """Every dtype, tensors of several chunks, of none, a scalar and an alias; names out of order."""
    tensors = [Tensor(f"z.{name}", dtype, (3, 4)) for name, dtype in DTYPES.items()]
    tensors += [
        Tensor("model.embed", DTYPES["BF16"], (70, 80)),
        Tensor("model.layers.1.w", DTYPES["BF16"], (50, 64)),
        Tensor("a.scale", DTYPES["F32"], ()),
        Tensor("empty", DTYPES["F16"], (0, 7)),
        Tensor("b.experts", DTYPES["F8_E4M3"], (5, 500)),
    ]
    return make_layout(tensors, [("lm_head", "model.embed")], chunk_lanes=chunk_lanes)


def random_weights(layout: Layout, seed: int) -> Weights:
    """Small normal numbers in floats, any bits elsewhere."""
    rng = np.random.default_rng(seed)
    found = {}
    for tensor in layout.tensors:
        if tensor.dtype.name == "BF16":
            floats = (rng.standard_normal(tensor.lanes) * 0.05).astype("<f4")
            found[tensor.name] = (floats.view("<u4") >> 16).astype("<u2").tobytes()
        else:
            found[tensor.name] = rng.bytes(tensor.nbytes)
    return found


def step(layout: Layout, weights: Weights, seed: int, density: float = 0.02) -> Weights:
    """Some lanes of some tensors go up or down by one."""
    rng = np.random.default_rng(seed)
    found = {}
    for tensor in layout.tensors:
        lanes = np.frombuffer(weights[tensor.name], f"<u{tensor.dtype.lane_bytes}").copy()
        moved = rng.random(len(lanes)) < density
        lanes[moved] += rng.choice(np.array([1, -1]), moved.sum()).astype(lanes.dtype)
        found[tensor.name] = lanes.tobytes()
    return found


def image_bytes(layout: Layout, weights: Weights) -> bytes:
    """What an image of these weights holds, gaps zero."""
    data = bytearray(layout.image_bytes)
    for tensor, offset in zip(layout.tensors, layout.offsets, strict=True):
        data[offset : offset + tensor.nbytes] = weights[tensor.name]
    return bytes(data)


def table_of(layout: Layout, weights: Weights) -> DigestTable:
    """Leaves and sums."""
    data = memoryview(image_bytes(layout, weights))
    leaves, sums = [], [0] * len(layout.tensors)
    for chunk in layout.chunks:
        part = data[chunk.offset : chunk.offset + chunk.nbytes]
        leaves.append(leaf_digest(layout.leaf, part))
        sums[chunk.tensor] += chunk_sum(layout.tensors[chunk.tensor].dtype, part, chunk.start_lane)
    return DigestTable(b"".join(leaves), np.array([s % (1 << 64) for s in sums], np.uint64))


def frames_between(layout: Layout, old: Weights | None, new: Weights) -> list[tuple[int, bytes]]:
    """(chunk, frame) of a delta, or of a snapshot."""
    before = memoryview(image_bytes(layout, old)) if old is not None else None
    after = memoryview(image_bytes(layout, new))
    frames = []
    for chunk in layout.chunks:
        dtype, part = layout.tensors[chunk.tensor].dtype, slice(chunk.offset, chunk.offset + chunk.nbytes)
        frame = encode_snapshot(dtype, after[part]).frame if before is None else encode_delta(dtype, before[part], after[part]).frame
        if frame:
            frames.append((chunk.number, frame))
    return frames


@dataclass
class World:
    """One run; `weights` by version number."""

    store: ObjectStore
    run: str = "r"
    per_shard: int = 7
    records: dict[int, VersionRecord] = field(default_factory=dict)
    weights: dict[int, Weights] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.catalog = Catalog(self.store, self.run)
        self.catalog.open_run("model")
        self.claim: Claim = self.catalog.claim("test")

    def put(self, key: str, data: bytes) -> Ref:
        """Stores an object, once."""
        if not any(stat.key == key for stat in self.store.list(key)):
            self.store.create(key, data)
        return Ref.of(data)

    def publish(
        self,
        layout: Layout,
        weights: Weights,
        *,
        snapshot: bool = False,
        small: dict[str, bytes] | None = None,
        headers: dict[str, Header] | None = None,
        table: DigestTable | None = None,
        frames: list[tuple[int, bytes]] | None = None,
    ) -> VersionRecord:
        """Commits one version, a delta on the one before where that can be. `table` and `frames` replace the true ones."""
        keys, number = self.catalog.keys, self.catalog.next_number(self.claim)
        parent = self.records[max(self.records)].ref if self.records else None
        base = None if snapshot or parent is None or self.layouts[parent.version].digest != layout.digest else parent
        if frames is None:
            frames = frames_between(layout, self.weights[base.version] if base else None, weights)
        writer, shards = self.claim.writer, []
        for start in range(0, len(frames), self.per_shard):
            part = frames[start : start + self.per_shard]
            data = pack_shard(part)
            ref = Ref.of(data)
            self.put(keys.shard(writer, number, base.version if base else 0, ref.digest), data)
            shards.append(Shard(ref.digest, ref.nbytes, part[0][0], part[-1][0]))
        table = table or table_of(layout, weights)
        digests = table.to_bytes(layout)
        files = self._files(small or {}, headers or {})
        new = NewVersion(
            number=number,
            parent=parent,
            base=base,
            form=Form.DELTA if base else Form.SNAPSHOT,
            step=None,
            layout=self.put(keys.layout(layout.digest), layout.to_bytes()),
            root=root_digest(layout, table.leaves),
            digests=self.put(keys.digests(writer, number, Ref.of(digests).digest), digests),
            files=files,
            shards=tuple(shards),
            checkpoint_bytes=layout.nbytes,
            changed_lanes=0,
        )
        plan = self.catalog.plan_commit(self.claim, new)
        for key, data in plan.objects:
            self.store.create(key, data)
        self.claim = self.catalog.finish_commit(self.claim, plan)
        self.records[number], self.weights[number], self.layouts[number] = plan.record, weights, layout
        return plan.record

    def _files(self, small: dict[str, bytes], headers: dict[str, Header]) -> Ref:
        keys = self.catalog.keys

        def named(name: str, data: bytes) -> NamedFile:
            return NamedFile(name, self.put(keys.file(Ref.of(data).digest), data))

        table = FileTable(
            tuple(named(name, data) for name, data in small.items()), tuple(named(name, header.raw) for name, header in headers.items())
        )
        return self.put(keys.file(Ref.of(table.to_bytes()).digest), table.to_bytes())

    def image(self, version: int) -> bytes:
        """The image of one version."""
        return image_bytes(self.layouts[version], self.weights[version])

    def shard_keys(self, version: int) -> list[str]:
        """Keys of the shards of a version's first payload."""
        record = self.records[version]
        payload = self.catalog.payload(record, record.manifest.base, record.manifest.writer)
        return [self.catalog.keys.shard(payload.writer, version, payload.base_version, shard.digest) for shard in payload.shards]


def chain(store: ObjectStore, versions: int, *, layout: Layout | None = None, density: float = 0.02) -> World:
    """A snapshot and deltas after it."""
    world, layout = World(store), layout or sample_layout()
    weights = random_weights(layout, 1)
    world.publish(layout, weights)
    for number in range(2, versions + 1):
        weights = step(layout, weights, number, density)
        world.publish(layout, weights)
    return world


def tree(directory: Path) -> dict[str, bytes]:
    """All files under a directory."""
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
