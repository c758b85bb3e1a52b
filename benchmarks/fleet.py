"""Real processes over real sockets and a real S3 server: a publisher, a control plane that is killed again and again, and subscribers.

    python -m benchmarks.fleet --versions 30 --output benchmarks/results/fleet.json

Versions appear in the publisher's directory one after another. Meanwhile the control plane is killed (SIGKILL) and started anew several
times, and one subscriber is stopped (SIGSTOP) for a third of the time. Subscribers: `watching` has the control plane, `stopped` too,
`alone` is told of one that never answers. In the end every version that `watching` delivered, and the last one of each, is compared byte
by byte with what was published. Reported are the seconds from the commit of the last version (the publisher's event) until each serves it.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.measure import circumstances
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor
from weightsync.format.safetensors import make_header
from weightsync.testing.s3_server import free_ports, seaweedfs

RUN = "fleet"
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Plan:
    """What happens. `poll_s`: mean seconds between polls of the subscribers; `values`: bf16 values of the model."""

    versions: int = 30
    poll_s: float = 1.0
    pause_s: float = 0.2
    values: int = 200_000
    kill_every: int = 5


@dataclass
class Result:
    """What came of it. `converged_s`: from the last commit until a subscriber served it; `identical`: versions compared, by subscriber."""

    versions: int = 0
    kills: int = 0
    stopped_s: float = 0.0
    publish_s: float = 0.0
    converged_s: dict[str, float] = field(default_factory=dict)
    identical: dict[str, list[int]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)  # served versions as the restarted control plane has them
    ready: dict[str, int] = field(default_factory=dict)  # HTTP status of /readyz


class Daemon:
    """A `weightsync` process whose events are read as they come."""

    def __init__(self, name: str, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name, self._log = name, log
        with log.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "weightsync", *arguments],
                stdout=subprocess.PIPE,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env=dict(environment),
                text=True,
            )
        self._events: queue.Queue[tuple[float, dict[str, Any]]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        if self.process.stdout is not None:
            with self.process.stdout as lines:
                for line in lines:
                    self._events.put((time.monotonic(), json.loads(line)))

    def until(self, name: str, **wanted: object) -> float:
        """Waits for an event with these fields; when it came (monotonic)."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                at, event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.name}: no {name} {wanted}: {self._log.read_text()[-2000:]}") from None
            if event["event"] == name and wanted.items() <= event.items():
                return at

    def kill(self) -> None:
        """As a machine that loses power does."""
        self.process.kill()
        self.process.wait()
        self._reader.join()

    def end(self) -> None:
        """SIGTERM, and it must go well."""
        self.process.terminate()
        if self.process.wait(30) != 0:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}: {self._log.read_text()[-2000:]}")


def checkpoints(home: Path, count: int, values: int) -> Iterator[Path]:
    """Successive checkpoints of one bf16 model: a hundredth of the values moves each time. Made one after another."""
    random = np.random.default_rng(0)
    weights = (random.standard_normal(values).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    header = make_header([Tensor("model.weight", DTYPES["BF16"], (values,))], {"format": "pt"})
    for number in range(1, count + 1):
        path = home / f"step-{number}"
        path.mkdir()
        (path / "model.safetensors").write_bytes(header.raw + weights.tobytes())
        yield path
        moved = random.random(values) < 0.01
        weights[moved] += random.choice(np.array([1, 65535], np.uint16), int(moved.sum()))


class Fleet:
    """The processes of one run."""

    def __init__(self, home: Path, store: str, environment: Mapping[str, str], plan: Plan) -> None:
        self.home, self._environment, self.plan = home, dict(environment), plan
        self._common = ["--store", store, "--run", RUN]
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self.inbox = home / "inbox"
        self.inbox.mkdir()
        self.server: Daemon | None = None

    def daemon(self, name: str, *arguments: object) -> Daemon:
        """Starts one."""
        environment = {
            **self._environment,
            "WEIGHTSYNC_CACHE": str(self.home / name),
            "WEIGHTSYNC_IMAGES": str(self.home / name / "images"),
        }
        texts = [*map(str, arguments), *self._common, "--json", "--log-format", "json"]
        return Daemon(name, texts, environment, self.home / f"{name}.log")

    def serve(self) -> None:
        """Starts the control plane."""
        self.server = self.daemon("server", "serve", "--listen", self.address, "--poll-s", 0.5)
        self.server.until("listening")

    def kill_server(self) -> None:
        """Without a word of farewell."""
        if self.server is not None:
            self.server.kill()

    def subscriber(self, name: str, server: str, port: int) -> Daemon:
        """Starts one that keeps every version that it delivers."""
        return self.daemon(
            name,
            *("subscribe", "--out", self.home / f"out-{name}", "--keep", self.plan.versions + 1, "--name", name, "--region", "test"),
            *("--server", server, "--poll-s", self.plan.poll_s, "--metrics", port),
        )

    def ask(self) -> dict[str, int]:
        """What each subscriber serves, as the control plane has heard."""
        command = [sys.executable, "-m", "weightsync", "status", "--server", self.address, "--run", RUN, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment, check=True)
        return {one["name"]: one["served"] for one in json.loads(done.stdout)["subscribers"]}


def run(home: Path, store: str, environment: Mapping[str, str], plan: Plan) -> Result:
    """Does all of it in `home`. Raises `AssertionError` when something is not as it should be."""
    result, fleet = Result(versions=plan.versions), Fleet(home, store, environment, plan)
    ports = dict(zip(("watching", "stopped", "alone"), free_ports(4)[1:], strict=True))
    with ExitStack() as stack:
        stack.callback(fleet.kill_server)
        fleet.serve()
        publisher = stack.enter_context(
            _killed(fleet.daemon("publisher", "publish", "--watch", fleet.inbox, "--server", fleet.address, "--poll-s", 0.1))
        )
        with _silent() as nobody:
            servers = {"watching": fleet.address, "stopped": fleet.address, "alone": nobody}
            subscribers = {name: stack.enter_context(_killed(fleet.subscriber(name, servers[name], ports[name]))) for name in servers}
            committed_at, originals = _publish(fleet, publisher, subscribers["stopped"], result)
            for name, subscriber in subscribers.items():
                result.converged_s[name] = round(subscriber.until("version", version=plan.versions) - committed_at, 3)
                result.ready[name] = _status(f"http://127.0.0.1:{ports[name]}/readyz")
            result.seen = _seen(fleet, plan.versions)
            for daemon in (*subscribers.values(), publisher):
                daemon.end()
    for name in subscribers:
        result.identical[name] = _compare(home / f"out-{name}", originals)
    return result


def _publish(fleet: Fleet, publisher: Daemon, stopped: Daemon, result: Result) -> tuple[float, dict[int, bytes]]:
    """When the last version was committed, and the bytes of all."""
    plan, originals, stop_at, up = fleet.plan, {}, 0.0, True
    started, committed_at = time.monotonic(), 0.0
    (fleet.home / "made").mkdir()
    for number, path in enumerate(checkpoints(fleet.home / "made", plan.versions, plan.values), 1):
        originals[number] = (path / "model.safetensors").read_bytes()
        if number == plan.versions // 3:
            stopped.process.send_signal(signal.SIGSTOP)
            stop_at = time.monotonic()
        if number == 2 * plan.versions // 3:
            stopped.process.send_signal(signal.SIGCONT)
            result.stopped_s = round(time.monotonic() - stop_at, 3)
        if number % plan.kill_every == 2 % plan.kill_every:
            fleet.kill_server()
            result.kills, up = result.kills + 1, False
        elif not up and number % plan.kill_every == 4 % plan.kill_every:
            fleet.serve()
            up = True
        path.rename(fleet.inbox / path.name)
        committed_at = publisher.until("published", version=number)
        time.sleep(plan.pause_s)
    result.publish_s = round(committed_at - started, 3)
    if not up:
        fleet.serve()
    return committed_at, originals


def _seen(fleet: Fleet, version: int) -> dict[str, int]:
    """What the control plane knows in the end: its subscribers have registered anew, and said what they serve."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = fleet.ask()
        if seen == {"watching": version, "stopped": version} or time.monotonic() > deadline:
            return seen
        time.sleep(0.5)


def _compare(out: Path, originals: dict[int, bytes]) -> list[int]:
    """Versions in `out`, each of them compared; the last one is what `current` names."""
    versions = sorted(int(path.name) for path in out.iterdir() if path.name.isdigit())
    wrong = [version for version in versions if (out / str(version) / "model.safetensors").read_bytes() != originals[version]]
    if wrong or (out / "current").readlink().name != str(max(originals)):
        raise AssertionError(f"{out.name}: versions {wrong} differ from what was published; current is {(out / 'current').readlink()}")
    return versions


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310  our own loopback address
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return refusal.code


@contextmanager
def _killed(daemon: Daemon) -> Iterator[Daemon]:
    try:
        yield daemon
    finally:
        daemon.kill()


@contextmanager
def _silent() -> Iterator[str]:
    """The address of a server that accepts and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield "127.0.0.1:%d" % server.getsockname()[1]  # noqa: UP031


def main(
    versions: Annotated[int, typer.Option()] = 30,
    poll_s: Annotated[float, typer.Option()] = 1.0,
    values: Annotated[int, typer.Option()] = 2_000_000,
    output: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Runs the plan over SeaweedFS."""
    with TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "s3").mkdir()
        with seaweedfs(home / "s3") as server:
            plan = Plan(versions=versions, poll_s=poll_s, values=values)
            result = run(home, server.url("models"), {**os.environ, **server.environment}, plan)
    document = {**circumstances(), "plan": vars(plan), "result": vars(result)}
    text = json.dumps(document, indent=1)
    if output is not None:
        output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    typer.run(main)
