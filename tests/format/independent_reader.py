"""A second reader of the store format, written from `proto/FORMAT.md` alone. It must import nothing of weightsync.

`Reader(fetch, run).tensors(version)` gives every tensor's bytes by name; `fetch(key)` gives an object's bytes. Slow: it proves that the
specification is enough.
"""

import json
import re
import struct
from collections.abc import Callable
from typing import Any

import xxhash
from blake3 import blake3

from tests.codec.plain_reader import TYPES, read_frame

Fetch = Callable[[str], bytes]
Chunk = tuple[int, int, int, str]  # tensor, first lane, lanes, dtype


class Refused(Exception):
    """The store does not hold what the format promises."""


def demand(condition: bool, why: str) -> None:
    if not condition:
        raise Refused(why)


def record(data: bytes, kind: str, run: str) -> tuple[dict[str, Any], str]:
    """(body, digest) of an envelope, the digest compared before anything is parsed."""
    end = data.rfind(b',"digest":"')
    demand(data.startswith(b'{"body":') and end > 0, f"{kind}: not an envelope")
    body = data[len(b'{"body":') : end]
    tail = re.fullmatch(rb',"digest":"([0-9a-f]{64})","signatures":\[.*\]\}', data[end:])
    demand(tail is not None, f"{kind}: not an envelope")
    digest = blake3(body).hexdigest()
    demand(tail is not None and tail[1].decode() == digest, f"{kind}: digest")
    value = json.loads(body)
    demand((value["kind"], value["format"], value["run"]) == (kind, 1, run), f"{kind}: identity")
    return value, digest


def blob(fetch: Fetch, key: str, ref: dict[str, Any]) -> bytes:
    """An object that is named by digest and size."""
    data = fetch(key)
    demand(len(data) == ref["bytes"] and blake3(data).hexdigest() == ref["digest"], f"{key}: digest")
    return data


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def frames(data: bytes) -> dict[int, bytes]:
    """Frames of a shard by chunk."""
    demand(data[:8] == b"WSSH\x01\0\0\0", "shard: magic")
    (count,) = struct.unpack_from("<I", data, 8)
    at, chunk, sizes = 12, -1, []
    for _ in range(count):
        gap, at = varint(data, at)
        size, at = varint(data, at)
        chunk += gap + 1
        sizes.append((chunk, size))
    found = {}
    for chunk, size in sizes:
        found[chunk] = data[at : at + size]
        at += size
    demand(at == len(data), "shard: length")
    return found


def lane_bytes(dtype: str) -> int:
    return TYPES[dtype][0] // 8


def lane_count(dtype: str, shape: list[int]) -> int:
    elements = 1
    for size in shape:
        elements *= size
    return elements * 2 if dtype in ("C64", "C128") else elements // 2 if dtype == "F4" else elements


def prefixed(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


class Reader:
    """Reads versions of one run."""

    def __init__(self, fetch: Fetch, run: str) -> None:
        self.fetch, self.run = fetch, run

    def head(self, channel: str = "latest") -> dict[str, Any]:
        """The move that the channel's head holds."""
        move, _, _ = self.fetch(f"{self.run}/channels/{channel}/head").partition(b"\n")
        return record(move, "move", self.run)[0]

    def committed(self) -> list[int]:
        """Versions in the history of `latest`, ascending."""
        move, found = self.head(), set()
        while True:
            found.add(move["version"])
            previous = move["previous"]
            if previous is None:
                return sorted(found - {0})
            key = f"{self.run}/channels/latest/log/{previous['sequence']}-{previous['write_id']}"
            move, digest = record(self.fetch(key), "move", self.run)
            demand(digest == previous["digest"] and move["sequence"] == previous["sequence"], f"{key}: broken history")

    def manifest(self, version: int) -> tuple[dict[str, Any], str]:
        """(body, digest) of a version's manifest."""
        return record(self.fetch(f"{self.run}/versions/{version}/manifest"), "manifest", self.run)

    def tensors(self, version: int) -> dict[str, bytes]:
        """Raw bytes of every tensor of a version, aliases included."""
        manifest, digest = self.manifest(version)
        layout = json.loads(blob(self.fetch, f"{self.run}/layouts/{manifest['layout']['digest']}", manifest["layout"]))
        state = self._state(manifest, digest, layout)
        found = {name: bytes(state[number]) for number, (name, _, _) in enumerate(layout["tensors"])}
        return found | {name: found[target] for name, target in layout["aliases"]}

    def _state(self, manifest: dict[str, Any], digest: str, layout: dict[str, Any]) -> list[bytearray]:
        if manifest["base"] == 0:
            state = [bytearray(lane_count(d, s) * lane_bytes(d)) for _, d, s in layout["tensors"]]
        else:
            parent, parent_digest = self.manifest(manifest["parent"]["version"])
            demand(parent_digest == manifest["parent"]["manifest"], "parent")
            state = self._state(parent, parent_digest, layout)
        self._apply(manifest, digest, layout, state)
        self._prove(manifest, layout, state)
        return state

    def _apply(self, manifest: dict[str, Any], digest: str, layout: dict[str, Any], state: list[bytearray]) -> None:
        version, base, writer = manifest["version"], manifest["base"], manifest["writer"]
        payload, _ = record(self.fetch(f"{self.run}/versions/{version}/payloads/{base}-{writer}"), "payload", self.run)
        demand(payload["target"] == {"manifest": digest, "version": version}, "payload: target")
        chunks = self._chunks(layout)
        for shard in payload["shards"]:
            data = blob(self.fetch, f"{self.run}/shards/{writer}-{version}-{base}/{shard['digest']}", shard)
            for number, frame in frames(data).items():
                demand(shard["first"] <= number <= shard["last"], "shard: range")
                tensor, start, lanes, dtype = chunks[number]
                size = lane_bytes(dtype)
                window = slice(start * size, (start + lanes) * size)
                old = bytes(state[tensor][window]) if base else None
                state[tensor][window] = read_frame(dtype, frame, old, lanes)

    @staticmethod
    def _chunks(layout: dict[str, Any]) -> list[Chunk]:
        """Every chunk in order."""
        found: list[Chunk] = []
        for number, (_, dtype, shape) in enumerate(layout["tensors"]):
            total, step = lane_count(dtype, shape), layout["chunk_lanes"]
            found += [(number, start, min(step, total - start), dtype) for start in range(0, total, step)]
        return found

    def _prove(self, manifest: dict[str, Any], layout: dict[str, Any], state: list[bytearray]) -> None:
        key = f"{self.run}/digests/{manifest['writer']}-{manifest['version']}/{manifest['digests']['digest']}"
        table = blob(self.fetch, key, manifest["digests"])
        leaves: list[list[bytes]] = [[] for _ in layout["tensors"]]
        for tensor, start, lanes, dtype in self._chunks(layout):
            size = lane_bytes(dtype)
            raw = state[tensor][start * size : (start + lanes) * size]
            leaves[tensor].append(xxhash.xxh3_128_digest(raw) if layout["leaf"] == "xxh3-128" else blake3(raw).digest())
        counts = struct.pack("<QQQ", layout["chunk_lanes"], len(layout["tensors"]), len(layout["aliases"]))
        text = b"weightsync root 1\0" + prefixed(layout["leaf"].encode()) + counts
        for (name, dtype, shape), own in zip(layout["tensors"], leaves, strict=True):
            text += (
                prefixed(name.encode())
                + prefixed(dtype.encode())
                + struct.pack(f"<{len(shape) + 1}Q", len(shape), *shape)
                + prefixed(b"".join(own))
            )
        for name, target in layout["aliases"]:
            text += prefixed(name.encode()) + prefixed(target.encode())
        demand(blake3(text).hexdigest() == manifest["root"], f"version {manifest['version']}: root")
        flat = b"".join(leaf for own in leaves for leaf in own)
        width = 16 if layout["leaf"] == "xxh3-128" else 32
        sums = struct.pack(
            f"<{len(state)}Q", *(self._sum(TYPES[d][0], raw) for (_, d, _), raw in zip(layout["tensors"], state, strict=True))
        )
        header = b"WSDG" + bytes((1, width, 0, 0)) + struct.pack("<II", len(flat) // width, len(state))
        demand(table == header + flat + sums, f"version {manifest['version']}: digests")

    @staticmethod
    def _sum(bits: int, raw: bytes | bytearray) -> int:
        mask, total, size = (1 << 64) - 1, 0, bits // 8
        for index in range(len(raw) // size):
            z = (index + 1) * 0x9E3779B97F4A7C15 & mask
            z = (z ^ z >> 32) * 0xD6E8FEB86659FD93 & mask
            total += int.from_bytes(raw[index * size : (index + 1) * size], "little") * ((z ^ z >> 32) | 1)
        return total & mask
