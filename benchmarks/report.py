"""Tables for the terminal and the plot for the README, both from a results file."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

Json = dict[str, Any]
OURS = "#c2410c"
MARKS = ((OURS, "*"), ("#f59e0b", "*"), ("#0f766e", "o"), ("#1d4ed8", "s"), ("#6b21a8", "^"), ("#475569", "D"))  # in the order of codecs


def show(results: Json, console: Console) -> None:
    """All parts of a results file as tables."""
    for pair in results["pairs"]:
        console.print(_pair_table(pair))
    if results.get("densities"):
        console.print(_density_table(results["densities"]))
    for line in _lines(results):
        console.print(line)


def _pair_table(pair: Json) -> Table:
    limit = pair["limit"]
    sizes = f"{pair['nbytes'] / 1e6:.0f} MB, {pair['density']:.2%} changed"
    title = f"{pair['pair']}: {sizes}; limit {limit['ratio']}x, {limit['bits_per_change']} bits a change"
    table = Table(title=title, title_justify="left")
    for column in ("codec", "sent by"):
        table.add_column(column)
    for column in ("ratio", "bytes/change", "x limit", "encode GB/s", "decode GB/s", "bare enc", "bare dec"):
        table.add_column(column, justify="right")
    for codec in pair["codecs"]:
        numbers = [codec[key] for key in ("ratio", "bytes_per_change", "of_limit")]
        speeds = [codec[f"{key}_gb_s"] for key in ("encode", "decode", "bare_encode", "bare_decode")]
        cells = ["-" if number is None else f"{number:.2f}" for number in (*numbers, *speeds)]
        table.add_row(codec["name"], codec["who"], *cells, style="bold" if codec["who"] == "weightsync" else "")
    return table


def _density_table(rows: list[Json]) -> Table:
    table = Table(title="class-gap against a full publish, by density", title_justify="left")
    columns = (
        "changed",
        "of raw size",
        "ratio",
        "publish time x full",
        "encode GB/s",
        "full GB/s",
        "encode time x full",
        "decode GB/s",
        "full GB/s",
        "decode time x full",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        delta, full = row["delta"], row["full"]
        table.add_row(
            f"{row['density']:.2%}",
            f"{row['of_raw']:.4f}",
            "-" if delta["ratio"] is None else f"{delta['ratio']:.1f}",
            f"{row['publish_time_of_full']:.2f}",
            f"{delta['encode_gb_s']:.2f}",
            f"{full['encode_gb_s']:.2f}",
            f"{row['encode_time_of_full']:.2f}",
            f"{delta['decode_gb_s']:.2f}",
            f"{full['decode_gb_s']:.2f}",
            f"{row['decode_time_of_full']:.2f}",
        )
    return table


def _lines(results: Json) -> list[str]:
    base = results["baselines"]
    lines = [f"memcpy {base['memcpy_gb_s']:.1f} GB/s, two-stream read {base['two_stream_read_gb_s']:.1f} GB/s, kernel {results['kernel']}"]
    for check in results["checks"]:
        mark = "[green]yes[/]" if check["holds"] else "[red]no[/]"
        lines.append(f"{mark}  {check['what']}: {check['value']:.3g} (bound {check['bound']:g})")
    if small := results.get("small_tensors"):
        lines.append(
            f"{small['tensors']:,} tensors of {small['lanes']} values, each: "
            f"encode {small['encode_us']:.1f} us, decode {small['decode_us']:.1f} us"
        )
    return lines


def plot(results: Json, path: Path) -> None:
    """Ratio against encode and decode speed for the first pair, at the width of a README; PNG or SVG by the suffix."""
    pair, base = results["pairs"][0], results["baselines"]
    style: dict[Any, Any] = {
        "font.size": 9.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "weightsync",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with mpl.rc_context(style):
        figure, axes = plt.subplots(1, 2, figsize=(9, 4.4), sharey=True, layout="constrained")
        for axis, what in zip(axes, ("encode", "decode"), strict=True):
            _panel(axis, pair, what, base["memcpy_gb_s"])
        axes[0].set_ylabel("times smaller than the checkpoint")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        figure.suptitle(f"One step of RL, {pair['density']:.2%} of the bf16 values changed", fontsize=10.5)
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(figure)


def _panel(axis: Axes, pair: Json, what: str, memcpy: float) -> None:
    limit = pair["limit"]["ratio"]
    axis.set(xscale="log", yscale="log", xlabel=f"{what}: GB of checkpoint per second of one core", ylim=(20, 1.35 * limit))
    axis.axhline(limit, color=OURS, linestyle="--", linewidth=1)
    axis.annotate(f"entropy limit {limit:.0f}x", (0.01, limit), xycoords=("axes fraction", "data"), va="bottom", color=OURS)
    axis.axvline(memcpy, color="#94a3b8", linestyle=":", linewidth=1)
    axis.annotate("memcpy", (memcpy, 22), rotation=90, ha="right", va="bottom", color="#64748b")
    codecs = [codec for codec in pair["codecs"] if codec["ratio"]]
    for codec, (color, marker) in zip(codecs, MARKS, strict=False):
        label = f"{codec['name']}: {codec['ratio']:.0f}x"
        axis.scatter(
            codec[f"{what}_gb_s"], codec["ratio"], s=130 if marker == "*" else 48, color=color, marker=marker, label=label, zorder=3
        )
    speeds = [codec[f"{what}_gb_s"] for codec in codecs]
    low, high = 0.7 * min(speeds), 1.4 * max(*speeds, memcpy)
    axis.set_xlim(low, high)
    ticks = [2.0**power for power in range(-6, 7) if low < 2.0**power < high]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.set_yticks([25, 50, 100, 200], ["25x", "50x", "100x", "200x"])
    axis.set_yticks([], minor=True)
    axis.grid(alpha=0.2)
