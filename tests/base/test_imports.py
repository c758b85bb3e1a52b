"""What the layers promise at run time: the core works where torch and the engines are not installed."""

import os
import subprocess
import sys
from pathlib import Path

import weightsync

PACKAGE = Path(weightsync.__file__).parent
OPTIONAL = ("torch", "safetensors", "grpc", "prometheus_client", "vllm", "sglang", "matplotlib", "pytest", "hypothesis")
NOT_CORE = (
    "weightsync.cli.demo",
    "weightsync.codec.kernel",  # only where a compiler was found
    "weightsync.control",
    "weightsync.daemon.observe_server",
    "weightsync.daemon.plane",
    "weightsync.engine",
    "weightsync.publisher.torch_source",
    "weightsync.rl",
    "weightsync.testing",
)

SCRIPT = """
import importlib, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None  # importing it raises ImportError
for name in sys.argv[2].split(","):
    importlib.import_module(name)
"""


def modules() -> list[str]:
    """Every module of the core."""
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if (
            not name.endswith("_pb2_grpc")
            and not f"{name}.".startswith(tuple(f"{other}." for other in NOT_CORE))
            and parts[-1] != "__main__"
        ):
            names.append(name)
    return names


def test_every_module_of_the_core_can_be_imported_without_optional_packages():
    command = [sys.executable, "-W", "error", "-c", SCRIPT, ",".join(OPTIONAL), ",".join(modules())]
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=PACKAGE.parent, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    )
    assert ended.returncode == 0, ended.stderr
