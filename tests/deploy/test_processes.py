"""The exact command lines of units and compose file, as real processes; and what they export against what dashboards and alerts ask for."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager

import promql_parser
import pytest

from tests.cli.tools import CANARY, ROOT, contents, moved, save, weights
from tests.deploy.files import OUR_METRIC, UNITS, example_environment, expressions, load, unit
from weightsync.catalog import Catalog
from weightsync.clock import SYSTEM
from weightsync.store.file import FileStore
from weightsync.testing.s3_server import find_program, free_ports, wait_until_up

PATIENCE_S = 60.0


def environment(home, **extra):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEIGHTSYNC_", "AWS_", "XDG_"))}
    return {
        **kept,
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        "WEIGHTSYNC_IMAGES": str(home / "images"),
        **extra,
    }


class Notified:
    """What a service manager hears on its socket."""

    def __init__(self, path):
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.heard = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._listen)  # the kernel keeps ten messages for who does not listen
        self._thread.start()

    def _listen(self):
        while message := self._socket.recv(4096).decode():
            with self._news:
                self.heard.append(message)
                self._news.notify_all()

    def until(self, message):
        with self._news:
            assert self._news.wait_for(lambda: message in self.heard, PATIENCE_S), f"no {message} in {self.heard}"

    def close(self):
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()


class Process:
    def __init__(self, command, env, log):
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=env)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        assert code == 0, self.log.read_text()
        text = self.log.read_text()
        assert CANARY not in text
        assert all(json.loads(line) for line in text.splitlines()), "a line of the log is not JSON"

    def close(self):
        self.process.kill()
        self.process.wait()


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def wait_for(condition, what):
    """Until it holds; a machine under load may take its time."""
    deadline_s = SYSTEM.monotonic_s() + PATIENCE_S
    while not condition():
        assert SYSTEM.monotonic_s() < deadline_s, what
        SYSTEM.sleep_s(0.05)


@contextmanager
def running_units(home):
    """The three units, as systemd would start them, with the example's settings; only places differ."""
    ports = dict(zip(("grpc", *UNITS), free_ports(4), strict=True))
    with ExitStack() as stack:
        units = {}
        for name in UNITS:
            given = example_environment(name)
            given |= {"WEIGHTSYNC_STORE": (home / "store").as_uri(), "WEIGHTSYNC_METRICS": f"127.0.0.1:{ports[name]}"}
            for variable in {"WEIGHTSYNC_LISTEN", "WEIGHTSYNC_SERVER"} & set(given):
                assert given[variable] == "127.0.0.1:7443"
                given[variable] = f"127.0.0.1:{ports['grpc']}"
            for variable, place in (("WEIGHTSYNC_WATCH", "checkpoints"), ("WEIGHTSYNC_OUT", "out")):
                if variable in given:
                    given[variable] = str(home / place)
            program, *arguments = shlex.split(unit(name)["ExecStart"][0])
            assert program.endswith("/weightsync")
            notified = Notified(home / f"notify-{name}")
            stack.callback(notified.close)
            extra = {
                "WEIGHTSYNC_CACHE": str(home / name),
                "NOTIFY_SOCKET": str(notified.path),
                "WATCHDOG_USEC": "500000",
                "WEIGHTSYNC_POLL_S": "0.2",
            }
            env = environment(home, AWS_SECRET_ACCESS_KEY=CANARY, **given, **extra)
            process = Process([sys.executable, "-m", "weightsync", *arguments], env, home / f"{name}.log")
            stack.callback(process.close)
            units[name] = process, notified, ports[name]
        yield units


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """/metrics of the three units when a version was published, promoted and followed; what else they promise is checked on the way."""
    home = tmp_path_factory.mktemp("units")
    (home / "checkpoints").mkdir()
    with running_units(home) as units:
        for name in ("serve", "publish"):
            units[name][1].until("READY=1")
        first = save(home / "step-1", weights(1, 4000))
        first.rename(home / "checkpoints" / "step-1")
        catalog = Catalog(FileStore(home / "store"), "tuning")
        wait_for(lambda: (head := catalog.head()) and head.version, "no version was published")
        subscriber, notified, port = units["subscribe"]
        assert get(port, "/healthz")[0] == 200
        assert get(port, "/readyz")[0] == 503  # it follows `serving`, which points nowhere: up, but not ready
        assert "READY=1" not in notified.heard
        catalog.move("serving", 1, expected_sequence=None, who="test", why="a test")
        notified.until("READY=1")
        assert get(port, "/readyz") == (200, "version 1 is served\n")
        notified.until("WATCHDOG=1")
        server_port = units["serve"][2]
        wait_for(lambda: "weightsync_fleet_subscribers{" in get(server_port, "/metrics")[1], "the server shows no fleet")
        yield {name: get(units[name][2], "/metrics")[1] for name in UNITS}
        for name in reversed(UNITS):
            process, notified, _ = units[name]
            process.end()
            notified.until("STOPPING=1")
        assert contents(home / "out" / "current") == contents(home / "checkpoints" / "step-1")
        assert subscriber.process.returncode == 0


def exported(pages):
    """Names with suffixes as exposed, and the labels of each."""
    found = {}
    for page in pages.values():
        for name, labels in re.findall(r"^([a-z_]+)(?:\{([^}]*)\})? ", page, re.MULTILINE):
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def test_what_dashboards_and_alerts_ask_for_is_exported(pages):
    names = exported(pages)
    for where, expression in expressions():
        wanted = set(OUR_METRIC.findall(expression)) | set(re.findall(r"\bprocess_\w+", expression))
        assert wanted <= set(names), f"{where} asks for {wanted - set(names)}"


def selectors(node):
    """All vector selectors of an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for attribute in ("lhs", "rhs", "expr", "vector_selector", "args"):
        below = getattr(node, attribute, None)
        for one in below if isinstance(below, list) else [below]:
            if one is not None:
                yield from selectors(one)


def test_labels_that_are_matched_exist(pages):
    names, seen = exported(pages), 0
    for where, expression in expressions():
        for selector in selectors(promql_parser.parse(expression.replace("$run", ".*"))):
            wanted = {matcher.name for matcher in selector.matchers.matchers} - {"__name__"}
            assert wanted <= names[selector.name], f"{where}: {selector.name} has {names[selector.name]}"
            seen += len(wanted)
    assert seen > 10


def test_every_process_says_what_it_is(pages):
    roles = {name: re.search(r'weightsync_build_info\{role="(\w+)"', page)[1] for name, page in pages.items()}
    assert roles == {"serve": "server", "publish": "publisher", "subscribe": "subscriber"}
    assert CANARY not in "".join(pages.values())


@pytest.mark.s3
def test_the_compose_file_does_what_it_says(tmp_path):
    services = load("compose.yaml")["services"]
    grpc, s3, *rest = free_ports(10)
    probes, inner = dict(zip(("control-plane", "publisher", "subscriber-1", "subscriber-2"), rest[:4], strict=True)), rest[4:]
    keys = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": CANARY}
    (tmp_path / "data").mkdir()
    (tmp_path / "checkpoints").mkdir()
    with ExitStack() as stack:
        places = {"/data": "data", "0.0.0.0": "127.0.0.1", "8333": s3}
        flags = [
            re.sub("|".join(map(re.escape, places)), lambda m: str(tmp_path / "data") if m[0] == "/data" else str(places[m[0]]), one)
            for one in services["s3"]["command"]
        ]
        flags += [f"-{name}.port={port}" for name, port in zip(("master", "filer", "volume", "admin"), inner, strict=True)]
        server = Process([find_program("weed"), *flags], environment(tmp_path, **keys), tmp_path / "s3.log")
        stack.callback(server.close)
        wait_until_up(f"http://127.0.0.1:{s3}", server.process, server.log)
        processes = {}
        for name, port in probes.items():
            home = tmp_path / name
            home.mkdir()
            changed = {
                "control-plane:7443": f"127.0.0.1:{grpc}",
                "0.0.0.0:7443": f"127.0.0.1:{grpc}",
                "/checkpoints": str(tmp_path / "checkpoints"),
            }
            command = [changed.get(one, one).replace("/var/cache/weightsync", str(home)) for one in services[name]["command"]]
            given = {**services[name]["environment"], **keys, "WEIGHTSYNC_RUN": "demo", "WEIGHTSYNC_CACHE": str(home)}
            given["WEIGHTSYNC_STORE"] = given["WEIGHTSYNC_STORE"].replace("s3:8333", f"127.0.0.1:{s3}")
            given |= {"WEIGHTSYNC_METRICS": f"127.0.0.1:{port}", "WEIGHTSYNC_LOG_FORMAT": "json"}
            processes[name] = Process([sys.executable, "-m", "weightsync", *command], environment(home, **given), tmp_path / f"{name}.log")
            stack.callback(processes[name].close)
        first = weights(2, 4000)
        for number, state in enumerate((first, moved(first, 3)), 1):
            shutil.move(save(tmp_path / f"step-{number}", state), tmp_path / "checkpoints")
            ready = f"version {number} is served\n"
            for name in ("subscriber-1", "subscriber-2"):
                wait_for(lambda name=name, ready=ready: _ready(probes[name]) == ready, f"{name} does not reach version {number}")
        for name in ("subscriber-1", "subscriber-2"):
            assert contents(tmp_path / name / "out" / "current") == contents(tmp_path / "checkpoints" / "step-2")
        for name in reversed(probes):
            processes[name].end()


def _ready(port):
    try:
        return get(port, "/readyz")[1]
    except OSError:
        return "not up yet"
