"""What the README says about driving the control plane by hand, done by hand: with `buf curl`, which speaks as `grpcurl` does."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tests.control.test_serve import serve
from weightsync.catalog import Catalog
from weightsync.control.server import SERVICES
from weightsync.store.file import FileStore
from weightsync.testing.tiny_run import TinyRun

ROOT = Path(__file__).parents[2]
BUF = Path(sys.executable).parent / "buf"
STREAMS = ("WatchVersions", "WatchFleet")


def commands() -> list[str]:
    text = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"<!-- grpcurl -->(.*?)<!-- /grpcurl -->", text, re.DOTALL)[1]
    joined = block.replace("|\n", "| ")
    return [line.strip() for line in joined.splitlines() if "grpcurl" in line]


def call(address: str, command: str, stdin: str | None) -> str:
    words = shlex.split(command)
    assert words[:2] == ["grpcurl", "-plaintext"]
    method, data = words[-1], words[words.index("-d") + 1] if "-d" in words else "{}"
    line = [BUF, "curl", "--http2-prior-knowledge", "--protocol", "grpc", "-d", data.replace("@", "@-"), f"http://{address}/{method}"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        if method.endswith(STREAMS):
            first = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)
            return first
        out, err = process.communicate(stdin, timeout=20)
        assert process.returncode == 0, err
        return out


def test_a_person_can_drive_everything_from_the_readme(tmp_path):
    TinyRun(Catalog(FileStore(str(tmp_path)), "tuning", capability="full")).publish(7)
    called = set()
    with serve(tmp_path, "--reflection") as (_process, address):
        for line in commands():
            before, _, command = line.rpartition("| ")
            stdin = None
            if before:
                words = [str(tmp_path).join(("file://", "")) if word.startswith("file://") else word for word in shlex.split(before)]
                run = [sys.executable, "-m", *words]
                stdin = subprocess.run(run, capture_output=True, text=True, check=True, timeout=60).stdout
            assert call(address, command, stdin).startswith("{"), line
            called.add(command.split()[-1])
    assert {f"{service.full_name}/{method.name}" for service in SERVICES for method in service.methods} <= called
