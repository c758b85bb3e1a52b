"""A host's replica with a few versions of one small model, for tests of engines: no store, no network, no torch.

scene = EngineScene(tmp_path / "image")          # versions 1 to 4, at version 1
change = scene.change(1, 2)                      # the replica goes to 2, and what leads there
scene.sums(2)                                    # by name
"""

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from weightsync.codec import chunk_sum
from weightsync.engine.api import Change
from weightsync.engine.change import make_change, open_change
from weightsync.engine.change_file import Head, Kind, Part, Writer, write_parts
from weightsync.errors import Invalid
from weightsync.format.digests import DigestTable
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.format.refs import VersionRef
from weightsync.format.root import leaf_digest
from weightsync.replica.directory import PrivateDirectory
from weightsync.replica.past import PastLimits
from weightsync.replica.replica import Replica
from weightsync.replica.state import CHANGE_PREFIX

Arrays = Mapping[str, NDArray[Any]]  # lanes by tensor name


def small_layout() -> Layout:
    """Several chunks, a scalar, no elements, a tied pair; only types that every engine has."""
    tensors = [
        Tensor("model.embed_tokens.weight", DTYPES["BF16"], (96, 32)),
        Tensor("model.layers.0.mlp.down_proj.weight", DTYPES["BF16"], (32, 64)),
        Tensor("model.layers.0.mlp.up_proj.weight", DTYPES["BF16"], (64, 32)),
        Tensor("model.layers.0.norm.weight", DTYPES["F32"], (32,)),
        Tensor("model.scale", DTYPES["F32"], ()),
        Tensor("model.empty", DTYPES["F16"], (0, 4)),
    ]
    return make_layout(tensors, [("lm_head.weight", "model.embed_tokens.weight")], chunk_lanes=1024)


def random_lanes(tensor: Tensor, rng: np.random.Generator) -> NDArray[Any]:
    """Small normal numbers in the types of `small_layout`, any bits elsewhere."""
    numbers = (rng.standard_normal(tensor.lanes) * 0.05).astype("<f4")
    match tensor.dtype.name:
        case "BF16":
            return (numbers.view("<u4") >> 16).astype("<u2")
        case "F16":
            return numbers.astype("<f2").view("<u2")
        case "F32":
            return numbers.view("<u4")
    return np.frombuffer(rng.bytes(tensor.nbytes), f"<u{tensor.dtype.lane_bytes}").copy()


class EngineScene:
    """`versions` of a model; each after the first differs from the one before in a `share` of the lanes, by one unit. Close it."""

    def __init__(
        self,
        directory: Path,
        *,
        layout: Layout | None = None,
        first: Arrays | None = None,
        versions: int = 4,
        share: float = 0.02,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        """`first`: the lanes of version 1; None: random ones."""
        self.layout = layout or small_layout()
        self._rng = np.random.default_rng(seed)
        self._tables: dict[int, DigestTable] = {}
        arrays = dict(first or {tensor.name: random_lanes(tensor, self._rng) for tensor in self.layout.tensors})
        self.weights: list[dict[str, NDArray[Any]]] = [arrays]  # that of version N is at N - 1
        for _ in range(1, versions):
            self.weights.append(self._step(self.weights[-1], share))
        self.replica = Replica(directory, threads=threads, past=PastLimits(image_share=4.0))
        self.go(1)

    def ref(self, version: int) -> VersionRef:
        """What a version is called."""
        return VersionRef(version, blake3(b"manifest %d" % version).hexdigest())

    def sums(self, version: int) -> dict[str, int]:
        """The sums of a version by tensor name."""
        table = self._table(version)
        return {tensor.name: int(table.sums[number]) for number, tensor in enumerate(self.layout.tensors)}

    def add(self, arrays: Arrays) -> int:
        """Another version, of these weights; its number."""
        self.weights.append(dict(arrays))
        return len(self.weights)

    def go(self, version: int) -> None:
        """Makes the replica hold a version."""
        replica, ref = self.replica, self.ref(version)
        if replica.version == ref:
            return
        with replica.begin(ref, self.layout, self._table(version)) as transition:
            data = self._image(version)
            for chunk in self.layout.chunks:
                part = data[chunk.offset : chunk.offset + chunk.nbytes]
                if not transition.in_place or transition.image.chunk(chunk.number) != part:
                    transition.fill(chunk.number, part)
            transition.finish()

    def change(self, base: int | None, version: int) -> Change:
        """What leads from `base` (None: from anything) to a version, which the replica holds afterwards."""
        if base is not None:
            self.go(base)
        self.go(version)
        return make_change(self.replica, self.ref(base) if base is not None else None)

    def forged(self, change: Change, *, sums: NDArray[np.uint64] | None = None) -> Change:
        """The same sparse change with other `sums` in the file: what a proof must refuse."""
        parts = [Part(one.tensor, Kind.SPARSE, one.positions, one.values, one.old) for one in change.tensors]
        if any(part.positions is None for part in parts):
            raise Invalid("only a sparse change can be forged")
        path = self.replica.path / f"{CHANGE_PREFIX}{'f' * 16}"
        directory = PrivateDirectory(self.replica.path)
        path.unlink(missing_ok=True)
        with closing(directory), directory.fresh(path.name) as fd:
            writer = Writer(fd)
            write_parts(writer, self.layout, parts)
            head = Head(change.base, change.version, change.holds or change.version, self.layout.digest)
            digest = writer.finish(head, change.sums if sums is None else sums, os.pwrite)
        with open_change(path, digest) as forged:
            return replace(forged)

    def close(self) -> None:
        """Lets go of the replica."""
        self.replica.close()

    def _step(self, arrays: Arrays, share: float) -> dict[str, NDArray[Any]]:
        found = {}
        for name, before in arrays.items():
            lanes = before.copy()
            moved = self._rng.random(len(lanes)) < share
            lanes[moved] ^= lanes.dtype.type(1)
            found[name] = lanes
        return found

    def _image(self, version: int) -> memoryview:
        data = bytearray(self.layout.image_bytes)
        for tensor, offset in zip(self.layout.tensors, self.layout.offsets, strict=True):
            data[offset : offset + tensor.nbytes] = self.weights[version - 1][tensor.name].tobytes()
        return memoryview(data)

    def _table(self, version: int) -> DigestTable:
        if version not in self._tables:
            data, leaves, sums = self._image(version), [], [0] * len(self.layout.tensors)
            for chunk in self.layout.chunks:
                part = data[chunk.offset : chunk.offset + chunk.nbytes]
                leaves.append(leaf_digest(self.layout.leaf, part))
                sums[chunk.tensor] += chunk_sum(self.layout.tensors[chunk.tensor].dtype, part, chunk.start_lane)
            self._tables[version] = DigestTable(b"".join(leaves), np.array([one % (1 << 64) for one in sums], np.uint64))
        return self._tables[version]
