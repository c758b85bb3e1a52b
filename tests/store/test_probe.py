"""The probe against servers that honour, half honour and silently ignore conditional writes."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from weightsync.errors import AlreadyExists, Conflict, Unavailable
from weightsync.store.api import Buffer
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Fault, Faults
from weightsync.store.probe import probe
from weightsync.store.s3 import S3Store
from weightsync.testing.s3_server import find_program, free_ports, wait_until_up


@contextmanager
def running(command: list[str], directory: Path, port: int) -> Iterator[str]:
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env={**os.environ, "HOME": str(directory)}
        )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        wait_until_up(endpoint, process, log)
        yield endpoint
    finally:
        process.kill()
        process.wait()


@pytest.mark.s3
@pytest.mark.parametrize(("server", "capability"), [("localbucket", "create_only"), ("rclone", "none")])
def test_real_servers_without_conditional_writes_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, capability: str
) -> None:
    (port,) = free_ports(1)
    root = tmp_path / "data"
    (root / "bucket").mkdir(parents=True)
    commands = {
        "localbucket": ["--port", str(port), str(root)],
        "rclone": ["serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "key,secret", "--config", str(tmp_path / "none"), str(root)],
    }
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with running([find_program(server), *commands[server]], tmp_path, port) as endpoint:
        store = S3Store("bucket", "p", endpoint=endpoint)
        assert probe(store, "gc/") == capability
        assert list(store.list("")) == []
        store.close()


@pytest.mark.parametrize("conditional", ["full", "create_only", "none"])
def test_memory_imitates_them(conditional: str) -> None:
    store = MemoryStore(conditional=conditional)  # type: ignore[arg-type]
    assert probe(store, "gc/") == conditional
    assert list(store.list("")) == []


@pytest.mark.parametrize("operation", ["create", "swap"])
@pytest.mark.parametrize("fault", [Fault.LOST_APPLIED, Fault.LOST_DROPPED, Fault.CONFLICT_409])
def test_a_lost_reply_does_not_mislead_it(fault: Fault, operation: str) -> None:
    for skip in range(2):
        store = MemoryStore()
        store.inject(fault, operation=operation, skip=skip)
        assert probe(store, "gc/") == "full"


@pytest.mark.parametrize(("operation", "capability"), [("create", "none"), ("swap", "create_only")])
def test_a_refusal_that_wrote_nevertheless_is_noticed(operation: str, capability: str) -> None:
    class Lying(MemoryStore):
        def create(self, key: str, data: Buffer) -> str:
            try:
                return super().create(key, data)
            except AlreadyExists:
                if operation == "create":
                    self.put(key, data)
                raise

        def swap(self, key: str, data: Buffer, etag: str) -> str:
            try:
                return super().swap(key, data, etag)
            except Conflict:
                if operation == "swap":
                    self.put(key, data)
                raise

    assert probe(Lying(), "gc/") == capability


def test_a_store_that_answers_nothing_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="losing replies"):
        probe(MemoryStore(faults=Faults(lost_dropped=1)), "gc/")
    with pytest.raises(Unavailable):
        probe(MemoryStore(faults=Faults(unavailable=1)), "gc/")
