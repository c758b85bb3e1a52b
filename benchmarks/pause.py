"""How long a torch engine pauses: against changed values, against the model's size, and against its own reload in the same run.

    python -m benchmarks.pause --output benchmarks/results/pause.json
    python -m benchmarks.pause --small

One thread; on a busy machine compare its CPU seconds, which stand beside the wall's. Each swap goes forth or back between two versions;
all are read back inside the pause, the last few also proven by the sums of all live weights after it. Reloads of the same model beside
it: `load_state_dict` from tensors in memory (one copy of all bytes; from a file in the page cache it is the same copy, as safetensors
maps it), and from the file on disk, dropped from the page cache before.
"""

import gc
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import typer
from blake3 import blake3
from matplotlib import pyplot as plt
from safetensors.torch import load_file, save_file

from benchmarks.measure import Baseline, circumstances
from weightsync.engine.api import Change, Mode, TensorChange
from weightsync.engine.changed_lanes import gain
from weightsync.engine.gate import Gate
from weightsync.engine.inplace import LiveWeights
from weightsync.engine.inplace.state_map import state_map
from weightsync.engine.torch_module import TorchModuleEngine
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.format.refs import VersionRef

WIDTH = 4096
SHARE = 0.0115  # of the bf16 values, in a step of RL
GB = 1_000_000_000


class Model:
    """`count` matrices of WIDTH x WIDTH in bf16, random, with an engine on them."""

    def __init__(self, nbytes: int) -> None:
        count = max(1, round(nbytes / (2 * WIDTH * WIDTH)))
        self.module = torch.nn.Module()
        for number in range(count):
            self.module.register_buffer(f"layer{number:03}", (torch.randn(WIDTH, WIDTH) * 0.02).bfloat16())
        tensors = [Tensor(name, DTYPES["BF16"], (WIDTH, WIDTH)) for name in self.module.state_dict()]
        self.layout: Layout = make_layout(tensors)
        self.gate = Gate()
        self.engine = TorchModuleEngine(self.module, self.gate, ref(1), layout=self.layout)
        self.nbytes = self.layout.nbytes

    def change(self, lanes: int, rng: np.random.Generator) -> Change:
        """Of about so many values, spread evenly, each by one unit; from version 1 to 2."""
        sums = self.engine.sums()
        totals = np.array([sums[tensor.name] for tensor in self.layout.tensors], np.uint64)
        share, parts = lanes / self.layout.lanes, []
        for number, tensor in enumerate(self.layout.tensors):
            positions = np.flatnonzero(rng.random(tensor.lanes, np.float32) < share).astype(np.uint32)
            old = self.module.get_buffer(tensor.name).view(torch.int16).numpy().view(np.uint16).ravel()[positions]
            one = TensorChange(number, positions, old ^ np.uint16(1), old)
            totals[number] = (int(totals[number]) + gain(one)) % (1 << 64)
            parts.append(one)
        return Change(ref(1), ref(2), self.layout, totals, tuple(parts), Path())


def ref(version: int) -> VersionRef:
    return VersionRef(version, blake3(b"%d" % version).hexdigest())


def back(change: Change) -> Change:
    """The way back."""
    tensors = tuple(one._replace(values=one.old, old=one.values) for one in change.tensors if one.old is not None)
    totals = change.sums.copy()
    for one in change.tensors:
        totals[one.tensor] = (int(totals[one.tensor]) - gain(one)) % (1 << 64)
    return replace(change, base=change.version, version=ref(1), tensors=tensors, sums=totals)


def swaps(model: Model, lanes: int, count: int, prove: int) -> dict[str, Any]:
    """`count` swaps of `lanes` values; the last `prove` are proven by full sums."""
    forth = model.change(lanes, np.random.default_rng(lanes))
    ways = (forth, back(forth))
    pauses, cpus, stages, proofs = [], [], [], []
    for number in range(count + count % 2):
        change = ways[number % 2]
        started = time.perf_counter()
        staged = model.engine.stage(change)
        stages.append(time.perf_counter() - started)
        cpu = time.thread_time()
        applied = staged.apply(Mode.KEEP, limit_s=60)
        cpus.append(time.thread_time() - cpu)
        assert applied.written == applied.read_back == change.lanes
        pauses.append(applied.pause_s)
        if number >= count - prove:
            started = time.perf_counter()
            model.engine.prove(change)
            proofs.append(time.perf_counter() - started)
    return {
        "model_bytes": model.nbytes,
        "changed_lanes": forth.lanes,
        "changed_share": forth.lanes / model.layout.lanes,
        "swaps": len(pauses),
        "pause_s": pauses,
        "pause_median_s": median(pauses),
        "pause_cpu_median_s": median(cpus),
        "stage_median_s": median(stages),
        "proof_median_s": median(proofs),
        "proven": len(proofs),
        "checkpoint_gb_per_s": model.nbytes / median(pauses) / 1e9,
        "ns_per_lane": median(pauses) / forth.lanes * 1e9,
    }


def profile(model: Model, lanes: int, count: int) -> dict[str, Any]:
    """What a pause is made of, at memory speed or not: the writes, and reading them back."""
    state = model.module.state_dict()
    live = LiveWeights(state, state_map(state, model.layout))
    change = model.change(lanes, np.random.default_rng(lanes))
    writes, reads, both = [], [], []
    for _ in range(count):
        plan = live.stage(change)
        started = time.perf_counter()
        plan.write()
        written = time.perf_counter()
        plan.read_back()
        reads.append(time.perf_counter() - written)
        writes.append(written - started)
        plan.undo()
        started = time.perf_counter()
        plan.put()
        both.append(time.perf_counter() - started)
        plan.undo()
    medians = {"write_median_s": median(writes), "read_back_median_s": median(reads), "one_pass_median_s": median(both)}
    speeds = {"write_gb_per_s": model.nbytes / median(writes) / 1e9, "best_write_gb_per_s": model.nbytes / min(writes) / 1e9}
    return {"model_bytes": model.nbytes, "changed_lanes": change.lanes, **medians, **speeds}


def reloads(model: Model, place: Path, count: int) -> dict[str, Any]:
    """The same model through `load_state_dict`, in a pause of the same gate."""
    path = place / "model.safetensors"
    state = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    save_file(state, path)

    def paused(load: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> list[float]:
        found = []
        for _ in range(count):
            before()
            cpu = time.thread_time()
            with model.gate.pause(Mode.KEEP, 600) as pause:
                load()
            found.append(pause.seconds)
            cpus.append(time.thread_time() - cpu)
        return found

    cpus: list[float] = []
    memory = paused(partial(model.module.load_state_dict, state))
    state.clear()
    from_file = lambda: model.module.load_state_dict(load_file(path))  # noqa: E731
    file, cold = paused(from_file), paused(from_file, partial(drop_from_cache, path))
    path.unlink()
    memory_cpu, file_cpu = median(cpus[:count]), median(cpus[count : 2 * count])
    found = {"memory_s": memory, "file_s": file, "cold_file_s": cold}
    cpu = {"memory_cpu_median_s": memory_cpu, "file_cpu_median_s": file_cpu}
    return {**found, **cpu, **{f"{key[:-2]}_median_s": median(values) for key, values in found.items()}}


def drop_from_cache(path: Path) -> None:
    """So that the next reader waits for the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plot(results: dict[str, Any], path: Path) -> None:
    """Pause against size, and against changed values."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    sizes = results["sizes"]
    gigabytes = [row["model_bytes"] / GB for row in sizes]
    left.plot(gigabytes, [1e3 * row["pause_median_s"] for row in sizes], "o-", color="#c2410c", label=f"in place, {SHARE:.2%} changed")
    fixed = results["fixed"]
    label = f"in place, {fixed[0]['changed_lanes'] / 1e6:.1f} million values"
    left.plot(
        [row["model_bytes"] / GB for row in fixed], [1e3 * row["pause_median_s"] for row in fixed], "s--", color="#f59e0b", label=label
    )
    for key, name, color in (
        ("memory_median_s", "reload from memory", "#0f766e"),
        ("file_median_s", "reload from a cached file", "#1d4ed8"),
        ("cold_file_median_s", "reload from disk", "#6b21a8"),
    ):
        left.plot(gigabytes, [1e3 * row["reload"][key] for row in sizes], "^-", color=color, label=name)
    left.set(xlabel="GB of bf16 weights", ylabel="pause, ms (median)", yscale="log")
    left.legend(frameon=False, fontsize=8)
    shares = results["shares"]
    right.plot([row["changed_lanes"] / 1e6 for row in shares], [1e3 * row["pause_median_s"] for row in shares], "o-", color="#c2410c")
    right.set(
        xlabel="million changed values",
        ylabel="pause, ms (median)",
        title=f"{shares[0]['model_bytes'] / GB:.2f} GB",
        xscale="log",
        yscale="log",
    )
    for axis in (left, right):
        axis.grid(alpha=0.2)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(small: bool = False, count: int = 20, output: Path | None = None) -> None:
    """Measures; writes JSON to `output` and a plot beside it."""
    torch.set_num_threads(1)
    unit = GB // 16 if small else GB
    baseline = Baseline()
    baseline.measure()
    sizes, fixed, shares = [], [], []
    profiled: dict[str, Any] = {}
    at_unit = int(unit / 2 * SHARE)
    for nbytes in (unit // 4, unit // 2, unit, 2 * unit):
        model = Model(nbytes)
        row = swaps(model, int(model.layout.lanes * SHARE), count, prove=4)
        with TemporaryDirectory(prefix="weightsync-pause-") as name:
            row["reload"] = reloads(model, Path(name), max(5, count // 2))
        # the reload brought the first version, as the swaps did
        for key in ("memory", "file", "cold_file"):
            row[f"shorter_than_reload_from_{key}"] = row["reload"][f"{key}_median_s"] / row["pause_median_s"]
        sizes.append(row)
        if nbytes >= unit:
            fixed.append(swaps(model, at_unit, count, prove=2))
        if nbytes == unit:
            profiled = profile(model, at_unit, max(5, count // 2))
            shares = [swaps(model, int(model.layout.lanes * share), count, prove=2) for share in (0.001, 0.003, 0.0115, 0.03)]
        print(json.dumps({key: value for key, value in row.items() if key not in ("pause_s", "reload")}), flush=True)
        del model
        gc.collect()
    found = {
        **circumstances(),
        "torch": torch.__version__,
        "threads": 1,
        "baseline": baseline.results(),
        "sizes": sizes,
        "fixed": fixed,
        "fixed_growth": fixed[1]["pause_median_s"] / fixed[0]["pause_median_s"],
        "shares": shares,
        "profile": profiled,
    }
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n")
        plot(found, output.with_suffix(".png"))
    print(json.dumps({key: value for key, value in found.items() if key not in ("sizes", "fixed", "shares")}))


if __name__ == "__main__":
    typer.run(main)
