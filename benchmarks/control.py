"""The control plane under many watchers, and under kills. Real processes, sockets and files.

    python -m benchmarks.control watchers --watchers 2000 --versions 200 --output benchmarks/results/control-2000.json
    python -m benchmarks.control kills --kills 100 --watchers 200 --output benchmarks/results/control-kills.json
    python -m benchmarks.control hostile --output benchmarks/results/control-hostile.json

`watchers`: one server process; all watchers attach, then versions are published one by one, each with a notice to the server. Times are
from just before the notice to when a watcher has the event. At the end the server is killed and all connect anew. `kills`: the server is
killed (SIGKILL) again and again at random times while versions are published; afterwards the recorded histories must pass all validators
of `weightsync.testing.watch_history`.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.control_clients import Watchers, truth_of
from benchmarks.control_hostile import Asker, flood, write_tokens
from weightsync.catalog import Catalog
from weightsync.control.client import ControlClient
from weightsync.errors import WeightsyncError
from weightsync.store.file import FileStore
from weightsync.testing.tiny_run import TinyRun
from weightsync.testing.watch_history import violations

RUN = "run"
MIB = 1 << 20
MAX_P99_MS = 1000
MAX_GROWTH_MIB = 64  # whatever one caller does
MAX_RSS_MIB = 200  # at 2,000 watchers; beyond, in proportion


class Server:
    """`weightsync serve` as a process on a port of its own."""

    def __init__(self, directory: Path, *flags: str, poll_s: float = 2.0) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._command = [sys.executable, "-m", "weightsync", "serve", "--store", f"file://{directory}", "--listen", self.address]
        self._command += ["--poll-s", str(poll_s), "--json", "--log-level", "error", *flags]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        line = self._process.stdout.readline() if self._process.stdout else ""
        if '"listening"' not in line:
            raise RuntimeError(f"the server does not listen: {line!r}")

    @property
    def process(self) -> psutil.Process:
        """As psutil shows it."""
        return psutil.Process(self._process.pid if self._process else 0)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(number)
        code = process.wait(30)
        if process.stdout:
            process.stdout.close()
        return code


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def measure_watchers(directory: Path, count: int, versions: int, gap_s: float) -> dict[str, Any]:
    """All attach, every event reaches everybody."""
    catalog = Catalog(FileStore(str(directory)), RUN, capability="full")
    run = TinyRun(catalog)
    server = Server(directory)
    await asyncio.to_thread(server.start)
    try:
        async with Watchers(server.address, RUN, count) as watchers:
            attach_s = await watchers.all_stand(240)
            attached = watchers.standing
            cpu_before, sent_s = _cpu_s(server), {}
            with ControlClient(server.address) as client:
                for _ in range(versions):
                    await asyncio.to_thread(run.publish)
                    sequence = run.claim.head.move.sequence
                    sent_s[sequence] = time.perf_counter()
                    await asyncio.to_thread(client.notify, RUN)
                    await watchers.all_reach(sequence, 60)
                    await asyncio.sleep(gap_s)
            cpu_s = _cpu_s(server) - cpu_before
            rss = server.process.memory_info().rss
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            reconnect_s = await watchers.all_stand(120)
            await asyncio.to_thread(run.publish)  # without a notice: a poll finds it
            await watchers.all_reach(run.claim.head.move.sequence, 60)
            found = violations(watchers.histories, truth_of(catalog))
            late_ms = [1000 * (at[sequence] - sent) for at in watchers.received_s for sequence, sent in sent_s.items()]
            delivered = sum(1 for history in watchers.histories for _ in history.moved())
    finally:
        server.stop()
    expected = count * run.claim.head.move.sequence
    cuts = statistics.quantiles(late_ms, n=1000)
    return {
        "watchers": count,
        "attached": attached,
        "attach_s": round(attach_s, 2),
        "reconnect_after_kill_s": round(reconnect_s, 2),
        "versions": run.claim.head.move.version,
        "events_expected": expected,
        "events_delivered": delivered,
        "violations": found,
        "server_rss_mib": round(rss / MIB, 1),
        "server_cpu_ms_per_event": round(1000 * cpu_s / versions, 1),
        "notify_ms": {"p50": round(cuts[499], 1), "p99": round(cuts[989], 1), "max": round(max(late_ms), 1)},
    }


def _cpu_s(server: Server) -> float:
    times = server.process.cpu_times()
    return times.user + times.system


async def measure_kills(directory: Path, count: int, kills: int, seed: int) -> dict[str, Any]:
    """Watchers go on over kills of the server; versions are published all the time."""
    rng = random.Random(seed)
    catalog = Catalog(FileStore(str(directory)), RUN, capability="full")
    run = TinyRun(catalog)
    server = Server(directory, poll_s=0.5)
    await asyncio.to_thread(server.start)
    stages = {"attaching": 0, "standing": 0}
    stop = asyncio.Event()
    try:
        async with Watchers(server.address, RUN, count) as watchers:
            publisher = asyncio.create_task(_publish(run, server.address, stop))
            await watchers.all_stand(60)
            reconnect_s = []
            for number in range(kills):
                await asyncio.sleep(rng.uniform(0.05, 0.6))
                stages["standing" if watchers.standing == count else "attaching"] += 1
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                if number % 2 == 0:  # every other time the next kill may hit those that are still connecting
                    reconnect_s.append(await watchers.all_stand(60))
            await watchers.all_stand(60)
            stop.set()
            await publisher
            await watchers.all_reach(run.claim.head.move.sequence, 60)
            found = violations(watchers.histories, truth_of(catalog))
            delivered = sum(1 for history in watchers.histories for _ in history.moved())
    finally:
        server.stop()
    return {
        "seed": seed,
        "watchers": count,
        "kills": kills,
        "kills_by_stage": stages,
        "versions": run.claim.head.move.version,
        "events_expected": count * run.claim.head.move.sequence,
        "events_delivered": delivered,
        "interruptions": watchers.interruptions,
        "reconnect_s": {"median": round(statistics.median(reconnect_s), 2), "max": round(max(reconnect_s), 2)} if reconnect_s else {},
        "violations": found,
    }


async def measure_hostile(directory: Path, reports: int, leases: int) -> dict[str, Any]:
    """One caller floods, another one asks; before, and meanwhile."""
    tokens = directory / "tokens.toml"
    write_tokens(tokens)
    TinyRun(Catalog(FileStore(str(directory / "store")), RUN, capability="full")).publish(1)
    server = Server(directory / "store", "--tokens", str(tokens))
    await asyncio.to_thread(server.start)
    try:
        asker = Asker(server.address, RUN)
        before = await asker.ask(5)
        rss = server.process.memory_info().rss
        meanwhile = asyncio.create_task(asker.ask(3600))
        started_s = time.perf_counter()
        outcomes = await flood(server.address, RUN, reports, leases)
        seconds = time.perf_counter() - started_s
        meanwhile.cancel()
        during = await meanwhile
        growth = server.process.memory_info().rss - rss
    finally:
        server.stop()
    return {
        "reports": reports,
        "leases": leases,
        "flood_s": round(seconds, 1),
        "outcomes": dict(outcomes),
        "rss_growth_mib": round(growth / MIB, 1),
        "others_before": before,
        "others_meanwhile": during,
    }


async def _publish(run: TinyRun, address: str, stop: asyncio.Event) -> None:
    """A version now and then; every other one without a notice, which a poll must find."""
    with ControlClient(address, timeout_s=1.0) as client:
        while not stop.is_set():
            await asyncio.to_thread(run.publish)
            if run.claim.head.move.sequence % 2:
                with suppress(WeightsyncError):  # it is down right now
                    await asyncio.to_thread(client.notify, RUN)
            await asyncio.sleep(0.15)


def machine() -> dict[str, Any]:
    """Where the figures come from."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    load = round(os.getloadavg()[0], 1)  # others at work on the same cores make everything slower
    return {
        "commit": commit,
        "load_before": load,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
    }


def _measure(given: argparse.Namespace, directory: Path) -> tuple[dict[str, Any], bool]:
    """The result, and whether it is within the bounds."""
    if given.kind == "hostile":
        result = asyncio.run(measure_hostile(directory, given.reports, given.leases))
        return result, result["rss_growth_mib"] <= MAX_GROWTH_MIB
    if given.kind == "kills":
        result, good = asyncio.run(measure_kills(directory, given.watchers, given.kills, given.seed)), True
    else:
        result = asyncio.run(measure_watchers(directory, given.watchers, given.versions, given.gap))
        good = result["notify_ms"]["p99"] < MAX_P99_MS and result["server_rss_mib"] < MAX_RSS_MIB * max(1, given.watchers / 2000)
    return result, good and result["events_delivered"] == result["events_expected"] and not any(result["violations"].values())


def main(arguments: list[str] | None = None) -> int:
    """0 when everything was delivered once, in order, and within the bounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control", description=__doc__.splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    watch = kinds.add_parser("watchers")
    watch.add_argument("--watchers", type=int, default=2000)
    watch.add_argument("--versions", type=int, default=200)
    watch.add_argument("--gap", type=float, default=0.05, help="seconds between an event's arrival everywhere and the next one")
    kill = kinds.add_parser("kills")
    kill.add_argument("--watchers", type=int, default=200)
    kill.add_argument("--kills", type=int, default=100)
    kill.add_argument("--seed", type=int, default=1)
    hostile = kinds.add_parser("hostile")
    hostile.add_argument("--reports", type=int, default=100_000)
    hostile.add_argument("--leases", type=int, default=10_000)
    for each in (watch, kill, hostile):
        each.add_argument("--output", type=Path, help="where the result goes, as JSON")
    given = parser.parse_args(arguments)
    started_s, where = time.perf_counter(), machine()
    with tempfile.TemporaryDirectory() as scratch:
        result, good = _measure(given, Path(scratch))
    command = " ".join(["python -m benchmarks.control", *(arguments if arguments is not None else sys.argv[1:])])
    document = {"command": command, **where, "seconds": round(time.perf_counter() - started_s, 1), "good": good, **result}
    text = json.dumps(document, indent=2)
    print(text)
    if given.output:
        given.output.write_text(text + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
