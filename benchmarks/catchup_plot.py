"""Catch-up bytes against the length of the gap.

python -m benchmarks.catchup_plot benchmarks/results/catchup.json benchmarks/results/catchup.svg
"""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import typer
from matplotlib import pyplot as plt

mpl.use("svg")


def draw(result: dict[str, Any], output: Path) -> None:
    """Both axes logarithmic: megabytes and seconds."""
    gaps = [entry for entry in result["gaps"] if entry["gap"]]
    missed = [entry["gap"] for entry in gaps]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    lines = (
        ("every_delta_bytes", "replay every delta", "C3--"),
        ("from_nothing_bytes", "download the snapshot", "C7--"),
        ("bytes", "weightsync", "C0o-"),
        ("least_bytes", "least, by brute force", "k:"),
    )
    for key, label, style in lines:
        left.plot(missed, [entry[key] / 1e6 for entry in gaps], style, label=label)
    left.set(xscale="log", yscale="log", xlabel="missed versions", ylabel="MB to download")
    left.legend()
    right.plot(missed, [entry["seconds"] for entry in gaps], "C0o-", label="all")
    right.plot(missed, [entry["path_s"] for entry in gaps], "C1.-", label="finding the path")
    right.set(xscale="log", yscale="log", xlabel="missed versions", ylabel="seconds, loopback")
    right.legend()
    figure.suptitle(
        f"{result['model_bytes'] / 1e6:.0f} MB model, {result['changed_mean']:.2%} changed per version, store: {result['store']}"
    )
    figure.savefig(output)


def main(results: Path, output: Path) -> None:
    """Draw kept results."""
    draw(json.loads(results.read_text()), output)


if __name__ == "__main__":
    typer.run(main)
