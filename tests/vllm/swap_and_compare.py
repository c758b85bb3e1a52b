"""Run by vLLM's Python: swaps a tiny model from version to version, and asks a fresh engine, loaded by vLLM's own loader, the same.

python swap_and_compare.py DIRECTORY '{"moe": true, "tied": false, "unpacked": true}'      prints one JSON object last
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
sys.path.insert(0, str(Path(__file__).parent))

import models
import numpy as np
import torch
from vllm import LLM, SamplingParams

from weightsync.engine.inplace import Region, add_up
from weightsync.engine.inplace.layout_map import Described
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor, make_layout
from weightsync.testing.engine_scene import EngineScene

WATCHED = {
    "load_format": "weightsync",
    "weight_transfer_config": {"backend": "weightsync"},
    "worker_extension_cls": "weightsync.engine.vllm.worker.WeightsyncWorker",
}


def start(directory: Path, **more: Any) -> LLM:
    common = {"skip_tokenizer_init": True, "dtype": "bfloat16", "enforce_eager": True, "max_model_len": 64, "max_num_seqs": 8}
    return LLM(model=str(directory), gpu_memory_utilization=0.2, enable_prefix_caching=False, **common, **more)


def answers(engine: LLM) -> list[Any]:
    settings = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": [5, 6, 7, 8, 9, 10]}, {"prompt_token_ids": [20, 30, 40]}]
    outputs = [one.outputs[0] for one in engine.generate(prompts, settings, use_tqdm=False)]
    return [(list(one.token_ids), [next(iter(step.values())).logprob for step in one.logprobs]) for one in outputs]


def only(engine: LLM, method: str, *args: Any) -> Any:
    (answer,) = engine.collective_rpc(method, args=args)
    return answer["ok"]


def sums(engine: LLM) -> dict[str, int]:
    found = only(engine, "weightsync_sums")
    regions = [Region(name, first, tuple(map(tuple, axes)), lanes, int(total)) for name, first, axes, lanes, total in found["regions"]]
    return add_up(regions, {name: Described(dtype, tuple(shape)) for name, (dtype, shape) in found["tensors"].items()})


def main(directory: Path, moe: bool, tied: bool, unpacked: bool) -> dict[str, Any]:
    weights, settings = models.tensors(moe=moe, tied=tied), models.config(moe=moe, tied=tied)
    layout = make_layout([Tensor(name, DTYPES["BF16"], tuple(one.shape)) for name, one in sorted(weights.items())], [], chunk_lanes=4096)
    first = {name: one.contiguous().view(torch.int16).numpy().reshape(-1).view("<u2") for name, one in weights.items()}
    scene = EngineScene(directory / "image", layout=layout, first=first, versions=3)
    live = start(models.write(directory / "1", weights, settings), model_loader_extra_config={"unpacked": unpacked}, **WATCHED)
    report, before = only(live, "weightsync_report"), answers(live)
    found: dict[str, Any] = {"opaque": report["opaque"], "repacked": report["repacked"], "seen": [], "wrong": []}
    for version in (1, 2, 3):
        if version > 1:
            change = scene.change(version - 1, version)
            only(live, "weightsync_stage", str(change.file), change.digest)
            only(live, "weightsync_write", str(change.file), change.digest)
            only(live, "weightsync_keep")
        proven, expected = sums(live), scene.sums(version)
        found["seen"].append(len(proven))
        found["wrong"] += [name for name in proven if proven[name] != expected[name]]
    after = answers(live)
    last = {name: torch.from_numpy(np.array(lanes).view(np.int16)) for name, lanes in scene.weights[2].items()}
    restored = {name: lanes.view(torch.bfloat16).reshape(weights[name].shape) for name, lanes in last.items()}
    fresh = answers(start(models.write(directory / "3", restored, settings)))
    scene.close()
    return found | {"tensors": len(weights), "changed": before != after, "same": after == fresh}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(Path(sys.argv[1]), **json.loads(sys.argv[2]))) + "\n")
