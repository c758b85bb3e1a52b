"""Swaps into a real vLLM: 50 in a row against fresh engines, dense and mixture of experts, tied and untied; and what a pause costs.

    python -m benchmarks.vllm_swaps --python VLLM_PYTHON [--small] [--output benchmarks/results/vllm_swaps.json]

Each case is a process of vLLM's own Python (its environment holds this package too). Ratios are against vLLM's reload of the same model,
from disk, in the same process.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
RUNS = 20


def swaps(directory: Path, count: int, moe: bool, tied: bool) -> dict[str, Any]:
    """All proven by sums; five times, spread out, asked the same as a fresh engine that vLLM's own loader started."""
    common = _common()
    weights, settings = common.models.tensors(moe=moe, tied=tied), common.models.config(moe=moe, tied=tied)
    scene, live = _started(directory, weights, settings, versions=count + 1, unpacked=True)
    proven = written = 0
    compared: list[dict[str, Any]] = []
    previous = common.answers(live)
    for version in range(2, count + 2):
        written += _swap(live, scene.change(version - 1, version))["written"]
        proven += common.sums(live) == scene.sums(version)
        if (version - 1) % (count // 5) == 0:
            restored = common.models.write(directory / str(version), _tensors(scene, version, weights), settings)
            now, fresh = common.answers(live), common.answers(common.start(restored))
            compared.append({"version": version, "same": now == fresh, "changed_since": now != previous})
            previous = now
    report = common.only(live, "weightsync_report")
    scene.close()
    kept = {"tensors": report["tensors"], "repacked": len(report["repacked"]), "opaque": len(report["opaque"])}
    return {"swaps": count, "proven": proven, "lanes": written, "fresh": compared, **kept}


def fault(directory: Path) -> dict[str, Any]:
    """vLLM's own reload of a mixture of experts: what the proof says of it, what it answers, and after a whole version in place."""
    common = _common()
    weights, settings = common.models.tensors(moe=True, tied=False), common.models.config(moe=True, tied=False)
    scene, live = _started(directory, weights, settings, versions=1, unpacked=True)
    before = common.answers(live)
    live.collective_rpc("reload_weights", kwargs={"weights_path": str(directory / "1")})
    found, expected = common.sums(live), scene.sums(1)
    wrong, spoilt = [name for name in found if found[name] != expected[name]], common.answers(live)
    _swap(live, scene.change(None, 1))
    healed = {"proven": common.sums(live) == expected, "same_answers": common.answers(live) == before}
    scene.close()
    return {"caught": bool(wrong), "wrong_tensors": len(wrong), "of": len(found), "answers_changed": spoilt != before, "healed": healed}


def pause(directory: Path, hidden: int, layers: int, lanes: int, unpacked: bool) -> dict[str, Any]:
    """Milliseconds inside the pause, in the worker; reload from disk is vLLM's own."""
    common = _common()
    common.models.HIDDEN, common.models.INNER, common.models.HEADS = hidden, 3 * hidden, hidden // 32
    weights, settings = (
        common.models.tensors(moe=False, tied=False, layers=layers),
        common.models.config(moe=False, tied=False, layers=layers),
    )
    total = sum(one.numel() for one in weights.values())
    scene, live = _started(directory, weights, settings, versions=2, unpacked=unpacked, share=lanes / total if lanes else 0.0115)
    ours, theirs = [], []
    changed = 0
    for run in range(RUNS):
        change = scene.change(1 + run % 2, 2 - run % 2)
        changed = change.lanes
        common.only(live, "weightsync_stage", str(change.file), change.digest)
        began = time.perf_counter()
        done = common.only(live, "weightsync_write", str(change.file), change.digest)
        ours.append(time.perf_counter() - began)
        common.only(live, "weightsync_keep")
    for _ in range(RUNS):
        began = time.perf_counter()
        live.collective_rpc("reload_weights", kwargs={"weights_path": str(directory / "1")})
        theirs.append(time.perf_counter() - began)
    report = common.only(live, "weightsync_report")
    right = common.sums(live) == {name: value for name, value in scene.sums(1).items() if name in common.sums(live)}
    scene.close()
    opaque = sum(weights[name].nbytes for name in done["opaque"])
    sizes = {"model_bytes": 2 * total, "changed_lanes": changed, "opaque_bytes": opaque, "opaque_parameters": len(report["opaque"])}
    times = {"ours_ms": 1e3 * median(ours), "disk_reload_ms": 1e3 * median(theirs), "ratio": median(theirs) / median(ours)}
    return {"unpacked": unpacked, "runs": RUNS, **sizes, **times, "right_after_reload": right}


def _common() -> Any:
    sys.path.insert(0, str(ROOT / "tests" / "vllm"))
    import swap_and_compare  # noqa: PLC0415 - it imports vLLM

    return swap_and_compare


def _started(directory: Path, weights: Any, settings: Any, *, versions: int, unpacked: bool, share: float = 0.0115) -> tuple[Any, Any]:
    common = _common()
    tensors = [common.Tensor(name, common.DTYPES["BF16"], tuple(one.shape)) for name, one in sorted(weights.items())]
    first = {name: one.contiguous().view(common.torch.int16).numpy().reshape(-1).view("<u2") for name, one in weights.items()}
    layout = common.make_layout(tensors, [], chunk_lanes=1 << 18)
    scene = common.EngineScene(directory / "image", layout=layout, first=first, versions=versions, share=share)
    common.models.write(directory / "1", weights, settings)
    return scene, common.start(directory / "1", model_loader_extra_config={"unpacked": unpacked}, **common.WATCHED)


def _swap(live: Any, change: Any) -> dict[str, Any]:
    common = _common()
    common.only(live, "weightsync_stage", str(change.file), change.digest)
    done: dict[str, Any] = common.only(live, "weightsync_write", str(change.file), change.digest)
    common.only(live, "weightsync_keep")
    return done


def _tensors(scene: Any, version: int, like: Any) -> dict[str, Any]:
    common = _common()
    bits = {name: common.torch.from_numpy(common.np.array(lanes).view("<i2")) for name, lanes in scene.weights[version - 1].items()}
    return {name: one.view(common.torch.bfloat16).reshape(like[name].shape) for name, one in bits.items()}


def cases(*, small: bool) -> dict[str, dict[str, Any]]:
    count = 5 if small else 50
    found: dict[str, dict[str, Any]] = {
        f"{'moe' if moe else 'dense'} {'tied' if tied else 'untied'}": {"do": "swaps", "count": count, "moe": moe, "tied": tied}
        for moe in (False, True)
        for tied in (False, True)
    }
    found["stock reload of experts"] = {"do": "fault"}
    found["pause"] = {"do": "pause", "hidden": 512, "layers": 8, "lanes": 0, "unpacked": True}
    found["pause, fixed changes"] = {"do": "pause", "hidden": 512, "layers": 8, "lanes": 200_000, "unpacked": True}
    found["pause, fixed changes, twice the layers"] = {"do": "pause", "hidden": 512, "layers": 16, "lanes": 200_000, "unpacked": True}
    found["pause, packed"] = {"do": "pause", "hidden": 512, "layers": 8, "lanes": 0, "unpacked": False}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--directory", type=Path, default=Path("/tmp/vllm-swaps"))  # noqa: S108
    parser.add_argument("--output", type=Path)
    parser.add_argument("--case")
    options = parser.parse_args()
    if options.case:
        case = json.loads(options.case)
        found = {"swaps": swaps, "fault": fault, "pause": pause}[case.pop("do")](options.directory, **case)
        print("\n" + json.dumps(found))
        return
    from benchmarks.measure import circumstances  # noqa: PLC0415 - not in vLLM's environment

    results: dict[str, Any] = {"circumstances": circumstances(), "cases": {}}
    for name, case in cases(small=options.small).items():
        directory = options.directory / name.replace(" ", "-")
        command = [options.python, __file__, "--python", "", "--directory", str(directory), "--case", json.dumps(case)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        results["cases"][name] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"error": done.stderr[-1500:]}
        print(name, results["cases"][name], flush=True)
        if options.output:
            options.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
