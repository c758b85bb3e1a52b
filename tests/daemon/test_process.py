import os
import signal
import socket
import threading
import urllib.error
import urllib.request

import pytest

from weightsync.daemon.bell import Bell
from weightsync.daemon.process import Process
from weightsync.errors import Corrupt, Invalid, Unavailable
from weightsync.telemetry import names
from weightsync.telemetry.health import Condition, HealthServer, parse_address
from weightsync.telemetry.metrics import MISSING, NoBoard, open_board
from weightsync.telemetry.notify import Notifier
from weightsync.testing.clock import ManualClock


def get(address, path, method="GET"):
    request = urllib.request.Request(f"http://{address[0]}:{address[1]}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


@pytest.fixture
def manager(tmp_path):
    """A service manager's socket and environment."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(30)
        yield end, {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "40000", "WATCHDOG_PID": str(os.getpid())}


def test_the_service_manager_hears_each_thing_once(manager):
    end, environment = manager
    with Process("test", metrics=(), notifier=Notifier(environment)) as process:
        process.tell_ready("version 1")
        process.tell_ready()
        heard = [end.recv(100) for _ in range(6)]
    while heard[-1] != b"STOPPING=1":
        heard.append(end.recv(100))
    assert [message for message in heard if message != b"WATCHDOG=1"] == [b"READY=1", b"STATUS=version 1", b"STOPPING=1"]
    assert heard.count(b"WATCHDOG=1") >= 4


def test_a_process_that_stands_still_is_not_called_alive(manager):
    end, environment = manager
    clock = ManualClock()
    with Process("test", metrics=(), notifier=Notifier(environment), stall_s=5, clock=clock) as process:
        assert end.recv(100) == b"WATCHDOG=1"
        clock.advance(6)
        end.settimeout(0.3)
        with pytest.raises(TimeoutError):
            any(not end.recv(100) for _ in range(10**6))  # after what was on its way nothing comes
        assert not process.healthy().holds
        process.beat()
        end.settimeout(30)
        assert end.recv(100) == b"WATCHDOG=1"


def test_nobody_needs_to_listen(tmp_path):
    Notifier({}).ready()
    assert Notifier({}).watchdog_s is None
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    assert Notifier({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}, pid=2).watchdog_s is None
    assert Notifier({"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000"}, pid=2).watchdog_s == 0.5


def test_abstract_sockets_are_spoken_to():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"\0weightsync-test-{os.getpid()}")
        end.settimeout(30)
        Notifier({"NOTIFY_SOCKET": f"@weightsync-test-{os.getpid()}"}).status("two\nlines")
        assert end.recv(100) == b"STATUS=two lines"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_and_readiness(number):
    before = signal.getsignal(number)
    with Process("test", metrics=(), address="127.0.0.1:0") as process:
        process.ready_when(lambda: Condition(True, "at work"))
        assert get(process.listening, "/readyz") == (200, "at work\n")
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
        assert process.bell.wait(60)
        assert process.bell.is_set()
        assert get(process.listening, "/readyz") == (503, "stopping\n")
        assert get(process.listening, "/healthz")[0] == 200
    assert signal.getsignal(number) is before


def test_a_second_interrupt_interrupts():
    with Process("test", metrics=()) as process:
        os.kill(os.getpid(), signal.SIGINT)
        process.bell.wait(60)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(("number", "in_flight"), [(signal.SIGINT, ""), (signal.SIGINT, "version 7"), (signal.SIGTERM, "version 7")])
def test_who_presses_ctrl_c_is_told_what_it_waits_for(number, in_flight):
    told = []
    with Process("test", metrics=(), on_interrupt=told.append) as process:
        process.in_flight = in_flight
        os.kill(os.getpid(), number)
        assert process.bell.wait(60)
    assert told == ([in_flight] if in_flight and number == signal.SIGINT else [])


def test_pages(caplog):
    with Process("test", metrics=names.SUBSCRIBER, address="0", version="1.2") as process:
        assert process.listening[0] == "127.0.0.1"
        process.failed(Corrupt("bad bytes"))
        process.on_scrape(lambda: process.board.set(names.SERVED, 7))
        status, page = get(process.listening, "/metrics?x=1")
        assert status == 200
        assert 'weightsync_build_info{role="test",version="1.2"} 1.0' in page
        assert 'weightsync_errors_total{kind="corrupt"} 1.0' in page
        assert "weightsync_subscriber_served_version 7.0" in page
        assert "weightsync_ready 0.0" in page
        assert "_created" not in page
        assert get(process.listening, "/")[0] == 404
        assert get(process.listening, "/healthz", "HEAD") == (200, "")
        assert get(process.listening, "/metrics", "POST")[0] == 501


def test_without_prometheus_client_the_page_says_so():
    board = NoBoard()
    board.set(names.SERVED, 1)
    board.add(names.ERRORS, labels=("x",))
    with HealthServer(
        ("127.0.0.1", 0), metrics=board.render, healthy=lambda: Condition(True, ""), ready=lambda: Condition(True, "")
    ) as server:
        assert get(server.address, "/metrics") == (501, f"{MISSING}\n")


def test_a_taken_address_is_unavailable():
    with Process("one", metrics=(), address="127.0.0.1:0") as process:
        where = "%s:%d" % process.listening  # noqa: UP031
        before = signal.getsignal(signal.SIGTERM)
        with pytest.raises(Unavailable, match="cannot listen"), Process("two", metrics=(), address=where):
            pass
        assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        (":9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9", ("::1", 9)),
        ("h:0", ("h", 0)),
    ],
)
def test_addresses(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:70000", "host:-1", "::1:9", "1:2:3"])
def test_what_is_no_address(text):
    with pytest.raises(Invalid):
        parse_address(text)


def test_series_that_are_gone_go():
    board = open_board(names.SERVER)
    board.replace(names.FLEET, {("run", "eu", "latest"): 2.0, ("run", "us", "latest"): 1.0})
    board.replace(names.FLEET, {("run", "us", "latest"): 3.0})
    lines = [line for line in board.render().decode().splitlines() if line.startswith("weightsync_fleet_subscribers{")]
    assert lines == ['weightsync_fleet_subscribers{channel="latest",region="us",run="run"} 3.0']


def test_names_are_as_prometheus_wants_them():
    everything = [*names.COMMON, *names.SUBSCRIBER, *names.PUBLISHER, *names.SERVER]
    assert len({metric.name for metric in everything}) == len(everything)
    page = open_board(everything).render().decode()
    for metric in everything:
        assert f"# TYPE {metric.sample} {metric.kind}" in page
        assert metric.text.endswith("."), metric.name
        assert "second" not in metric.name or metric.name.endswith("seconds")


def test_a_bell_counts_several_rings_once():
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(60)
    assert not bell.wait(0)
    bell.end()
    assert bell.wait(60)
    assert bell.wait(60)


def test_a_bell_may_be_rung_by_a_handler_that_interrupts_its_waiter():
    bell, rings = Bell(), 0
    before = signal.signal(signal.SIGALRM, lambda *_: bell.ring())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        while rings < 300:
            rings += bell.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
