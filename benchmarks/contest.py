"""One pair through all codecs, in turns, so that a busy moment hits them alike."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.limits import Limit, limit
from benchmarks.measure import Baseline, cpu_s, gb_per_s
from benchmarks.pairs import Chunk, ChunkPair, Pair
from benchmarks.paths import CheckpointFile, Leaves, decode, decode_verified, encode, encode_file, image_of, reset
from benchmarks.peers import ChunkCodec


@dataclass
class _Score:
    codec: ChunkCodec
    frames: list[bytes] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def took(self, what: str, work: Callable[[], object]) -> None:
        self.seconds.setdefault(what, []).append(cpu_s(work))


class Contest:
    """`pair` through each of `codecs`.

    `encode` and `decode` are the whole way, with the page-cached file, leaves and their check; `bare_*` the codec alone.
    """

    def __init__(self, pair: Pair, codecs: list[ChunkCodec]) -> None:
        self.pair = pair
        self._chunks = pair.chunks()
        self._image = image_of(self._chunks)
        self._scores = [_Score(codec) for codec in codecs]

    def run(self, repeats: int, baseline: Baseline | None = None) -> None:
        """`repeats` rounds; one more before them warms up and is forgotten. Raises `Corrupt` when a codec loses a bit."""
        with TemporaryDirectory() as directory, CheckpointFile(Path(directory) / "new.safetensors", self.pair) as file:
            for number in range(repeats + 1):
                for score in self._scores:
                    _round(score, self._chunks, self._image, file)
                    if not number:
                        score.seconds.clear()
                if baseline:
                    baseline.measure()

    def results(self) -> dict[str, Any]:
        """JSON of the pair, its limit and each codec."""
        bound = limit(self.pair)
        return {
            "pair": self.pair.name,
            "nbytes": self.pair.nbytes,
            "chunks": len(self._chunks),
            "density": bound.density,
            "limit": {
                "nbytes": round(bound.nbytes),
                "ratio": _ratio(self.pair.nbytes, bound.nbytes),
                "blind_ratio": _ratio(self.pair.nbytes, bound.blind_nbytes),
                "bits_per_change": round(bound.bits_per_change, 3),
            },
            "codecs": [_result(score, self.pair.nbytes, bound) for score in self._scores],
        }


def _round(score: _Score, chunks: list[ChunkPair], image: list[Chunk], file: CheckpointFile) -> None:
    leaves: Leaves = []

    def from_file() -> None:
        score.frames, leaves[:] = encode_file(score.codec, chunks, file)

    score.took("encode", from_file)
    reset(image, chunks)
    score.took("decode", lambda: decode_verified(score.codec, score.frames, image, leaves))
    score.took("bare_encode", lambda: encode(score.codec, chunks))
    reset(image, chunks)
    score.took("bare_decode", lambda: decode(score.codec, score.frames, image))


def _ratio(whole: float, part: float) -> float | None:
    return round(whole / part, 2) if part else None


def _result(score: _Score, nbytes: int, bound: Limit) -> dict[str, Any]:
    size = sum(map(len, score.frames))
    speeds = {f"{what}_gb_s": round(gb_per_s(nbytes, seconds), 3) for what, seconds in score.seconds.items()}
    return {
        "name": score.codec.name,
        "who": score.codec.who,
        "nbytes": size,
        "ratio": _ratio(nbytes, size),
        "bytes_per_change": round(size / bound.changed, 3) if bound.changed else None,
        "of_limit": _ratio(size, bound.nbytes),
        **speeds,
    }
