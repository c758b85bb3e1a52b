"""Whether a layout map tells the truth: what is written through it lies where the loader puts it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray

from weightsync.engine.inplace.dtypes import lane_bytes, storage_bits
from weightsync.engine.inplace.layout_map import LayoutMap
from weightsync.engine.inplace.live import LiveWeights
from weightsync.engine.inplace.recorder import Loader, Tensors

_PROBES = 64  # lanes of each tensor


def check(
    layout_map: LayoutMap, parameters: Mapping[str, Any], load: Loader, tensors: Callable[[], Tensors], *, seed: int = 0
) -> LayoutMap:
    """The map without what it is wrong about, which is opaque in what is given back.

    Random lanes of every tensor get new bits: written through the map, and then by the loader, which is run twice more: once with the
    changed tensors, once as at first. Wherever the loader changes a storage after the write, the map is wrong. Parameters end as loaded.
    For the time between loading and whatever the engine does to its parameters then.
    """
    live = LiveWeights(parameters, layout_map)
    rng = np.random.default_rng(seed)
    changed: dict[str, tuple[Any, NDArray[Any]]] = {}
    for name, tensor in tensors():
        if name in layout_map.tensors and tensor.numel():
            changed[name] = _probes(tensor, rng)
            live.poke(name, *changed[name])
    before = _fingerprints(layout_map, parameters)
    load(_with(tensors(), changed))
    after = _fingerprints(layout_map, parameters)
    load(_with(tensors(), {}))
    wrong = [home for home in before if before[home] != after[home] and home not in live.map.opaque]
    return live.map.without(dict.fromkeys(wrong, "the loader puts something elsewhere than was recorded"))


def _probes(tensor: Any, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    bits = _bits(tensor)
    # Only low bits: no value becomes one that conversions do not keep.
    positions = np.unique(np.concatenate([[0, len(bits) - 1], rng.integers(0, len(bits), _PROBES)])).astype(np.int64)
    found = bits[positions] ^ rng.integers(1, 2 if bits.itemsize == 1 else 128, len(positions)).astype(bits.dtype)
    return positions, found


def _bits(tensor: Any) -> NDArray[Any]:
    whole = tensor.detach().cpu().contiguous().clone()
    width = lane_bytes(whole)
    return storage_bits(whole).numpy().view(f"<u{width}")


def _with(tensors: Tensors, changed: Mapping[str, tuple[Any, NDArray[Any]]]) -> Iterator[tuple[str, Any]]:
    for name, tensor in tensors:
        probed = tensor.detach().clone(memory_format=torch.contiguous_format)
        if name in changed:
            positions, values = changed[name]
            bits = storage_bits(probed)
            bits[torch.from_numpy(positions).to(bits.device)] = (
                torch.from_numpy(values.view(f"<i{values.itemsize}")).to(bits.dtype).to(bits.device)
            )
        yield name, probed


def _fingerprints(layout_map: LayoutMap, parameters: Mapping[str, Any]) -> dict[str, int]:
    found = {}
    for home, one in layout_map.homes.items():
        parameter = next((parameters[name] for name in one.names if name in parameters), None)
        if parameter is not None:
            found[home] = xxhash.xxh3_128_intdigest(storage_bits(parameter).cpu().numpy().view(np.uint8).data)
    return found
