"""The lanes of a parameter's storage, to be gathered and scattered: on the host by the codec's kernel, on any device by plain torch.

Both do the same; what is held for a later write lies where it will be needed.
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from weightsync.codec import chunk_sum, gather, scatter
from weightsync.engine.inplace.axes import Places, Strided
from weightsync.engine.inplace.dtypes import lane_bytes, storage_bits
from weightsync.format.dtypes import dtype_named
from weightsync.format.sums import weights

_NARROW = (1 << 32) - 1  # places of the kernel
_BLOCK = 1 << 22  # lanes handled at once
_NEAR = 1 << 12  # scattered lanes whose cache lines a core keeps
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Lanes(Protocol):
    """All lanes of one storage, as unsigned integers. Places and values come as NumPy arrays and are held with `hold`."""

    width: int
    count: int

    def hold(self, array: NDArray[Any]) -> Any:
        """Where a later `write` wants it."""
        ...

    def hold_places(self, places: Places) -> Any:
        """Where a later `write` wants them."""
        ...

    def write(self, places: Any, values: Any) -> None:
        """Scatters."""
        ...

    def put(self, places: Any, values: Any) -> int:
        """Scatters and reads back; how many lanes are not as written."""
        ...

    def read(self, places: Any) -> Any:
        """Gathers."""
        ...

    def fetch(self, places: Places) -> NDArray[Any]:
        """Gathers, into an array of unsigned integers."""
        ...

    def differ(self, places: Any, values: Any) -> int:
        """How many lanes at `places` are not `values`."""
        ...

    def write_all(self, where: Strided, values: NDArray[Any]) -> None:
        """Writes a whole range; `values` are all lanes of the source tensor."""
        ...

    def differ_all(self, where: Strided, values: NDArray[Any]) -> int:
        """How many lanes of a whole range are not those of the source tensor."""
        ...

    def total(self, where: Strided) -> int:
        """The sum of a range by its source lanes, mod 2^64."""
        ...

    def total_at(self, places: Places, sources: Places) -> int:
        """The sum of what lies at `places`, by source lanes, mod 2^64."""
        ...


def lanes_of(parameter: Any) -> Lanes:
    """Of the storage of `parameter`."""
    return HostLanes(parameter) if parameter.device.type == "cpu" else DeviceLanes(parameter)


class HostLanes:
    """In this process's memory."""

    def __init__(self, parameter: Any) -> None:
        self.width = lane_bytes(parameter)
        self._keep = storage_bits(parameter)
        self.bits: NDArray[Any] = self._keep.numpy().view(_UNSIGNED[self.width])
        self.count = len(self.bits)
        self._dtype = dtype_named(f"U{8 * self.width}")

    def hold(self, array: NDArray[Any]) -> NDArray[Any]:
        """A copy of its own."""
        return np.array(array)

    def hold_places(self, places: Places) -> NDArray[Any]:
        """As the kernel takes them, where it can."""
        return places.astype(np.uint32) if self.count <= _NARROW else places

    def write(self, places: NDArray[Any], values: NDArray[Any]) -> None:
        """By the kernel."""
        if places.dtype == np.uint32:
            scatter(self.bits, places, values)
        else:
            self.bits[places] = values

    def put(self, places: NDArray[Any], values: NDArray[Any]) -> int:
        """In blocks whose cache lines are still near when they are read back: that takes little more than writing alone."""
        wrong = 0
        for at in range(0, len(places), _NEAR):
            where, what = places[at : at + _NEAR], values[at : at + _NEAR]
            self.write(where, what)
            wrong += self.differ(where, what)
        return wrong

    def read(self, places: NDArray[Any]) -> NDArray[Any]:
        """By the kernel."""
        return gather(self.bits, places, self.width) if places.dtype == np.uint32 else self.bits[places]

    def fetch(self, places: Places) -> NDArray[Any]:
        """A copy."""
        return self.bits[places]

    def differ(self, places: NDArray[Any], values: NDArray[Any]) -> int:
        """Counted."""
        return int(np.count_nonzero(self.read(places) != values))

    def write_all(self, where: Strided, values: NDArray[Any]) -> None:
        """A copy between strided views."""
        target, source = self._views(where, values)
        target[...] = source

    def differ_all(self, where: Strided, values: NDArray[Any]) -> int:
        """Block by block, so that no mask of the whole is made."""
        target, source = self._views(where, values)
        if not where.contiguous:
            return int(np.count_nonzero(target != source))
        target, source = target.reshape(-1), source.reshape(-1)
        blocks = range(0, len(target), _BLOCK)
        return sum(int(np.count_nonzero(target[at : at + _BLOCK] != source[at : at + _BLOCK])) for at in blocks)

    def total(self, where: Strided) -> int:
        """Run by run, at memory speed where runs are long."""
        if where.row >= 128 or where.contiguous:
            sources, targets = where.rows()
            row = where.row
            pairs = zip(sources.tolist(), targets.tolist(), strict=True)
            return sum(self._run(source, target, row) for source, target in pairs) % (1 << 64)
        return sum(self.total_at(target, source) for source, target in where.blocks()) % (1 << 64)

    def total_at(self, places: Places, sources: Places) -> int:
        """In 64-bit integers."""
        return int((self.bits[places].astype(np.uint64) * weights(sources.astype(np.uint64))).sum(dtype=np.uint64))

    def _run(self, source: int, target: int, lanes: int) -> int:
        data = self.bits[target : target + lanes]
        return sum(chunk_sum(self._dtype, data[at : at + _BLOCK], source + at) for at in range(0, lanes, _BLOCK))

    def _views(self, where: Strided, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        shape, width = [axis.size for axis in where.axes], self.width
        target = where.of(self.bits)
        source = np.lib.stride_tricks.as_strided(
            values[where.source :], shape, [axis.source * width for axis in where.axes], writeable=False
        )
        return target, source


class DeviceLanes:
    """Anywhere, in plain torch."""

    def __init__(self, parameter: Any) -> None:
        self.width = lane_bytes(parameter)
        self.bits = storage_bits(parameter)
        self.count = int(self.bits.numel())

    def hold(self, array: NDArray[Any]) -> Any:
        """On the device."""
        return torch.from_numpy(np.array(array).view(_signed(self.width))).to(self.bits.device)

    def hold_places(self, places: Places) -> Any:
        """On the device."""
        return torch.from_numpy(places).to(self.bits.device)

    def write(self, places: Any, values: Any) -> None:
        """No place is there twice."""
        self.bits.index_copy_(0, places, values)

    def put(self, places: Any, values: Any) -> int:
        """One after the other."""
        self.write(places, values)
        return self.differ(places, values)

    def read(self, places: Any) -> Any:
        """On the device."""
        return self.bits.index_select(0, places)

    def differ(self, places: Any, values: Any) -> int:
        """Counted on the device."""
        return int((self.read(places) != values).sum())

    def fetch(self, places: Places) -> NDArray[Any]:
        """A copy in host memory."""
        return self.read(self.hold_places(places)).cpu().numpy().view(_UNSIGNED[self.width])

    def write_all(self, where: Strided, values: NDArray[Any]) -> None:
        """Through blocks of host memory."""
        for source, target in where.blocks():
            self.write(self.hold_places(target), self.hold(values[source]))

    def differ_all(self, where: Strided, values: NDArray[Any]) -> int:
        """Through blocks of host memory."""
        return sum(self.differ(self.hold_places(target), self.hold(values[source])) for source, target in where.blocks())

    def total(self, where: Strided) -> int:
        """Block by block."""
        return sum(self.total_at(target, source) for source, target in where.blocks()) % (1 << 64)

    def total_at(self, places: Places, sources: Places) -> int:
        """On the device, in 64-bit integers, which wrap as sums do."""
        mask = (1 << (8 * self.width)) - 1 if self.width < 8 else -1
        lanes = self.read(self.hold_places(places)).long() & mask
        return int((lanes * _weights(self.hold_places(sources))).sum()) % (1 << 64)


def _weights(index: torch.Tensor) -> torch.Tensor:
    """`weightsync.format.sums.weights` in signed integers."""
    mixed = (index + 1) * (0x9E3779B97F4A7C15 - (1 << 64))
    mixed = mixed ^ ((mixed >> 32) & _NARROW)
    mixed = mixed * (0xD6E8FEB86659FD93 - (1 << 64))
    return (mixed ^ ((mixed >> 32) & _NARROW)) | 1


def _signed(width: int) -> type:
    return np.uint8 if width == 1 else {2: np.int16, 4: np.int32, 8: np.int64}[width]
