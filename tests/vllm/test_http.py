"""The adapter over HTTP against a real `vllm serve`, through the contract of all adapters."""

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from weightsync.engine.api import Mode
from weightsync.engine.open import open_engine
from weightsync.engine.vllm.http import VllmHttpEngine
from weightsync.errors import Unavailable
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor, make_layout
from weightsync.testing.engine_contract import EngineContract
from weightsync.testing.engine_scene import EngineScene

PYTHON = os.environ.get("VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON, reason="VLLM_PYTHON names no environment with vLLM"),
    pytest.mark.timeout(300),
]

QUIET = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
FLAGS = [
    *("--skip-tokenizer-init", "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", "128", "--max-num-seqs", "8"),
    *("--gpu-memory-utilization", "0.2", "--host", "127.0.0.1", "--served-model-name", "m", "--load-format", "weightsync"),
    *("--model-loader-extra-config", '{"unpacked": true}', "--weight-transfer-config", '{"backend": "weightsync"}'),
    *("--worker-extension-cls", "weightsync.engine.vllm.worker.WeightsyncWorker"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    pytest.importorskip("safetensors")
    sys.path.insert(0, str(Path(__file__).parent))
    import models

    weights = models.tensors(moe=True, tied=False)
    return models.write(tmp_path_factory.mktemp("model"), weights, models.config(moe=True, tied=False)), weights


@pytest.fixture(scope="module")
def server(model: tuple[Path, Any]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model[0]), "--port", str(port), *FLAGS]
    environment = {**os.environ, **QUIET, "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (model[0] / "log").open("w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            while not healthy(url):
                assert process.poll() is None, (model[0] / "log").read_text()[-3000:]
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
            yield url
        finally:
            process.terminate()


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2):
            return True
    except OSError:
        return False


def complete(url: str, tokens: int) -> dict[str, Any]:
    body = {"model": "m", "prompt": [5, 6, 7, 8], "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)["choices"][0]
    return found


class TestVllmOverHttp(EngineContract):
    @pytest.fixture
    def scene(self, tmp_path: Path, model: tuple[Path, Any]) -> Iterator[EngineScene]:
        import torch

        tensors = [Tensor(name, DTYPES["BF16"], tuple(one.shape)) for name, one in sorted(model[1].items())]
        first = {name: one.contiguous().view(torch.int16).numpy().reshape(-1).view("<u2") for name, one in model[1].items()}
        scene = EngineScene(tmp_path / "image", layout=make_layout(tensors, [], chunk_lanes=4096), first=first)
        yield scene
        scene.close()

    @pytest.fixture
    def engine(self, scene: EngineScene, server: str) -> VllmHttpEngine:
        engine = open_engine(f"vllm+{server}")
        assert isinstance(engine, VllmHttpEngine)
        engine.reload(scene.change(None, 1), limit_s=60)
        return engine

    @pytest.mark.parametrize("mode", list(Mode))
    def test_requests_after_a_swap_are_answered_by_the_new_weights_alone(
        self, engine: VllmHttpEngine, scene: EngineScene, server: str, mode: Mode
    ) -> None:
        first = complete(server, 24)["token_ids"]
        assert complete(server, 24)["token_ids"] == first  # by now its prompt is in the prefix cache
        engine.stage(scene.change(1, 4)).apply(mode, limit_s=20)
        second = complete(server, 24)["token_ids"]
        engine.reload(scene.change(None, 4), limit_s=60)
        assert complete(server, 24)["token_ids"] == second
        engine.stage(scene.change(4, 1)).apply(mode, limit_s=20)
        assert complete(server, 24)["token_ids"] == first


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        _ = VllmHttpEngine("http://127.0.0.1:9", timeout_s=2).version
