"""The report of the loop's demo: one HTML file that needs nothing else."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]
WINDOW = 10

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>weightsync demo</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1f2937 }}
table {{ border-collapse: collapse }} td {{ padding: .2rem 1rem .2rem 0 }} svg {{ max-width: 100%; height: auto }}</style>
<h1>A policy that learns over three regions</h1>
<p><b>Every swap proven against the trainer's sums before it served: {proven} of {swaps}.</b></p>
<table>{facts}</table>
{plots}
<p>So small a model learns only at learning rates where a large share of its values changes with every step, so its deltas are large for
their model: they show that the loop works, not how small deltas are. <code>weightsync demo --lr 1e-6</code> shows that.</p>
</html>
"""


def write(path: Path, found: Mapping[str, Any], rows: Rows, swaps: Rows, events: Sequence[tuple[float, str]]) -> Path:
    """Writes it; its absolute path. Raises `ModuleNotFoundError` without matplotlib, `OSError`."""
    shown = {
        "reward": f"{found['reward_start']:.3f} to {found['reward_end']:.3f}",
        "steps, versions": f"{found['steps']}, {found['versions']}",
        "bytes published, full checkpoints": f"{found['bytes_sent']:,}, {found['bytes_full']:,}",
        "pause, median and 99th percentile": f"{1e3 * found['pause_p50_s']:.1f} ms, {1e3 * found['pause_p99_s']:.1f} ms",
        "greatest policy lag": f"{found['lag_max_versions']} versions, {found['lag_max_s'] or 0:.1f} s",
        "trainer's time spent waiting": f"{found['trainer_waiting']:.0%}",
        "idle share of the rollout engines": ", ".join(f"{name} {share:.0%}" for name, share in found.get("idle", {}).items()),
        **{f"link to {name}": one["profile"] for name, one in found.get("links", {}).items()},
    }
    facts = "".join(f"<tr><td>{html.escape(name)}<td>{html.escape(value)}" for name, value in shown.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    page = PAGE.format(proven=found["swaps_proven"], swaps=found["swaps"], facts=facts, plots=_plots(rows, swaps, events))
    path.write_text(page, encoding="utf-8")
    return path.absolute()


def _plots(rows: Rows, swaps: Rows, events: Sequence[tuple[float, str]]) -> str:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, ((reward, lag), (size, pause)) = plt.subplots(2, 2, figsize=(11, 7), constrained_layout=True)
    start = rows[0]["at"] if rows else 0.0
    times = [row["at"] - start for row in rows]
    rewards = [row["metrics"].get("reward", 0.0) for row in rows]
    means = [sum(rewards[max(0, n - WINDOW) : n + 1]) / len(rewards[max(0, n - WINDOW) : n + 1]) for n in range(len(rewards))]
    reward.plot(times, rewards, color="#fdba74", linewidth=0.6)
    reward.plot(times, means, color="#c2410c")
    reward.set(title="reward", xlabel="seconds", ylim=(0, 1))
    for at, what in events:
        reward.axvline(at - start, color="#9ca3af", linestyle=":")
        reward.text(at - start, 0.02, what, rotation=90, fontsize=7, va="bottom", ha="right")
    lag.plot(times, [row["metrics"].get("lag_max", 0.0) for row in rows], drawstyle="steps-post", color="#1d4ed8")
    lag.set(title="policy lag of the oldest token trained, versions", xlabel="seconds")
    size.plot(times, [row["sent_bytes"] for row in rows], color="#0f766e", label="published")
    size.plot(times, [row["full_bytes"] for row in rows], color="#9ca3af", label="full checkpoint")
    size.set(title="bytes of a version", xlabel="seconds", yscale="log")
    size.legend()
    for region in sorted({str(one["region"]) for one in swaps}):
        own = [one for one in swaps if one["region"] == region and "pause" in one]
        pause.plot([one["at"] - start for one in own], [1e3 * one["pause"] for one in own], ".", label=region, markersize=3)
    pause.set(title="pause of a swap, ms", xlabel="seconds")
    pause.legend()
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg")
    plt.close(figure)
    text = drawn.getvalue()
    return text[text.index("<svg") :]
