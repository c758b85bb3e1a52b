"""class-gap beside the encodings of other systems, on the same pairs in the same run.

    python -m benchmarks.codec                                      generated pairs at three learning rates
    python -m benchmarks.codec --pairs DIR                          your own successive safetensors checkpoints
    python -m benchmarks.codec --output results.json --plot codec.svg

Speeds are GB of full checkpoint per CPU second of one core, medians. `encode` starts at a safetensors file in the page cache and
includes the digest of every chunk; `decode` ends at an image in which every chunk's digest was checked; the bare ones are the codecs
alone.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks import generate, report
from benchmarks.checks import checks
from benchmarks.contest import Contest
from benchmarks.measure import Baseline, circumstances, cpu_s
from benchmarks.pairs import ChunkPair, Pair, successive
from benchmarks.paths import ClassGap, Snapshot, decode_verified, encode_leaves, image_of, reset
from benchmarks.peers import ChunkCodec, peers
from benchmarks.units import parse_size
from benchmarks.whole_publish import delta_of_full

DENSITIES = (0.0, 0.001, 0.0114, 0.2, 0.5, 1.0)
RATES = (1e-6, 3e-6, 1e-5)
SMALL_TENSORS = 18_000
SMALL_LANES = 1024


def codecs() -> list[ChunkCodec]:
    """weightsync's codec first, then the peers'."""
    return [ClassGap(), ClassGap(classes=1), *peers()]


def densities(nbytes: int, repeats: int) -> list[dict[str, Any]]:
    """A delta against a full publish of the same checkpoint, from no change to all changed."""
    rows = []
    for density in DENSITIES:
        pair = generate.at_density(nbytes, density)
        contest = Contest(pair, [ClassGap(), Snapshot()])
        contest.run(repeats)
        result = contest.results()
        delta, full = result["codecs"]
        rows.append(
            {
                "density": result["density"],
                "of_raw": delta["nbytes"] / result["nbytes"],
                "publish_time_of_full": delta_of_full(pair),
                "encode_time_of_full": full["encode_gb_s"] / delta["encode_gb_s"],
                "decode_time_of_full": full["decode_gb_s"] / delta["decode_gb_s"],
                "delta": delta,
                "full": full,
            }
        )
    return rows


def small_tensors(tensors: int = SMALL_TENSORS, lanes: int = SMALL_LANES, repeats: int = 3) -> dict[str, Any]:
    """Microseconds that each of many small tensors costs, digests included."""
    stream = np.random.default_rng(9)
    old = generate.weights((tensors, lanes), stream)
    new = generate.step(old, 1e-6, stream)
    starts = range(0, old.size, lanes)
    chunks = [ChunkPair(generate.BF16, 0, old[start : start + lanes], new[start : start + lanes]) for start in starts]
    codec, image = ClassGap(), image_of(chunks)
    frames, leaves = encode_leaves(codec, chunks)
    encode_s, decode_s = [], []
    for _ in range(repeats):
        encode_s.append(cpu_s(lambda: encode_leaves(codec, chunks)))
        reset(image, chunks)
        decode_s.append(cpu_s(lambda: decode_verified(codec, frames, image, leaves)))
    micro = 1e6 / tensors
    return {"tensors": tensors, "lanes": lanes, "encode_us": median(encode_s) * micro, "decode_us": median(decode_s) * micro}


def contest_all(pairs: Iterable[Pair], repeats: int, baseline: Baseline) -> list[dict[str, Any]]:
    """Each pair through every codec."""
    found = []
    for pair in pairs:
        contest = Contest(pair, codecs())
        contest.run(repeats, baseline)
        found.append(contest.results())
    return found


def main(
    *,
    pairs: Annotated[Path | None, typer.Option(help="directory of successive safetensors checkpoints, instead of generated pairs")] = None,
    size: Annotated[str, typer.Option(help="of a generated checkpoint")] = "128MB",
    lr: Annotated[list[float] | None, typer.Option(help="learning rates of generated pairs; default 1e-6 3e-6 1e-5")] = None,
    repeats: Annotated[int, typer.Option(help="rounds; speeds are their medians")] = 5,
    sweep: Annotated[bool, typer.Option(help="also densities from 0 to 100 % and many small tensors")] = True,
    output: Annotated[Path | None, typer.Option(help="write the results as JSON")] = None,
    plot: Annotated[Path | None, typer.Option(help="write the ratio-speed plot of the first pair, .svg or .png")] = None,
) -> None:
    """Compare codecs and print a table."""
    console, nbytes, baseline = Console(width=150), parse_size(size), Baseline()
    chosen = successive(pairs) if pairs else (generate.make_pair(nbytes, rate) for rate in lr or RATES)
    results: dict[str, Any] = circumstances()
    results["pairs"] = contest_all(chosen, repeats, baseline)
    results["baselines"] = baseline.results()
    results["densities"] = densities(min(nbytes, 64_000_000), repeats) if sweep else []
    results["small_tensors"] = small_tensors() if sweep else None
    results["checks"] = checks(results)
    report.show(results, console)
    if output:
        output.write_text(json.dumps(results, indent=1) + "\n")
    if plot:
        report.plot(results, plot)


if __name__ == "__main__":
    typer.run(main)
