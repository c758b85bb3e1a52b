"""Real vLLM. `VLLM_PYTHON` names the interpreter of its environment, with this package in it; without it nothing is run here."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("VLLM_PYTHON", "")
SCRIPT = Path(__file__).with_name("swap_and_compare.py")

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no environment with vLLM"),
    pytest.mark.timeout(300),
]


def swapped(directory: Path, **model: bool) -> dict[str, Any]:
    done = subprocess.run(
        [PYTHON, str(SCRIPT), str(directory), json.dumps(model)], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("moe", [False, True])
def test_what_was_written_in_place_serves_as_a_fresh_engine(tmp_path: Path, moe: bool, tied: bool) -> None:
    found = swapped(tmp_path, moe=moe, tied=tied, unpacked=True)
    assert found["opaque"] == {}
    assert bool(found["repacked"]) == moe  # experts are prepacked: a permutation that is learned
    assert found["seen"] == [found["tensors"]] * 3
    assert found["wrong"] == []
    assert found["changed"]
    assert found["same"]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("moe", [False, True])
def test_what_the_cpu_build_packs_is_reloaded_alone_and_serves_as_a_fresh_engine(tmp_path: Path, moe: bool, tied: bool) -> None:
    found = swapped(tmp_path, moe=moe, tied=tied, unpacked=False)
    assert not any("experts" in name for name in found["opaque"])
    assert any("qkv_proj" in name for name in found["opaque"])
    assert ("model.embed_tokens.weight" in found["opaque"]) == tied  # the head keeps a packed form beside the plain one
    assert ("lm_head.weight" in found["opaque"]) != tied
    assert 0 < found["seen"][2] < found["tensors"]
    assert found["wrong"] == []
    assert found["changed"]
    assert found["same"]
