"""Links between regions: what passes is what was sent, late and not faster than it may; a cut says nothing and a mended link goes on."""

import os
import socket
import socketserver
import subprocess
import sys
import threading

import pytest

from weightsync.clock import SYSTEM
from weightsync.testing.namespaces import available
from weightsync.testing.region import region
from weightsync.testing.slow_proxy import Profile, SlowProxy

RATE_BPS, DELAY_S = 80e6, 0.05


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while piece := self.request.recv(65536):
            self.request.sendall(piece)


@pytest.fixture
def echo():
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address
    server.shutdown()
    thread.join()
    server.server_close()


def exchange(address, sent: bytes) -> bytes:
    with socket.create_connection(address, 10) as connection:
        threading.Thread(target=lambda: (connection.sendall(sent), connection.shutdown(socket.SHUT_WR))).start()
        got = bytearray()
        while piece := connection.recv(65536):
            got += piece
    return bytes(got)


def test_bytes_pass_unchanged_and_never_sooner_than_the_link_allows(echo):
    sent = os.urandom(1_000_000)
    with SlowProxy(echo, Profile(RATE_BPS, DELAY_S)) as proxy:
        started = SYSTEM.monotonic_s()
        assert exchange(proxy.address, sent) == sent
        assert SYSTEM.monotonic_s() - started >= 2 * DELAY_S + 8 * len(sent) / RATE_BPS  # a lower bound: no machine is too slow for it
        assert proxy.passed_bytes == (len(sent), len(sent))


def test_two_connections_share_the_link(echo):
    sent = os.urandom(500_000)
    with SlowProxy(echo, Profile(RATE_BPS)) as proxy:
        started = SYSTEM.monotonic_s()
        threads = [threading.Thread(target=exchange, args=(proxy.address, sent)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert SYSTEM.monotonic_s() - started >= 2 * 8 * len(sent) / RATE_BPS


def test_a_cut_link_says_nothing_and_loses_nothing(echo):
    with SlowProxy(echo, Profile()) as proxy, socket.create_connection(proxy.address, 10) as connection:
        connection.sendall(b"before")
        assert connection.recv(10) == b"before"
        proxy.cut()
        connection.sendall(b"during")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(10)
        proxy.mend()
        connection.settimeout(10)
        assert connection.recv(10) == b"during"


def test_a_server_that_is_not_there(echo):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with SlowProxy(nobody.getsockname(), Profile()) as proxy, socket.create_connection(proxy.address, 10) as connection:
            assert connection.recv(10) == b""


def test_a_region_without_rights_is_a_proxy(echo):
    with region("here", Profile(RATE_BPS, DELAY_S), namespaces=False) as place:
        assert place.prefix == ()
        assert exchange(place.reach(*echo), b"hello") == b"hello"
        assert place.passed_bytes == 10
        assert str(place) == "here: 80 Mbit/s, 100 ms round trip (a proxy)"


@pytest.mark.skipif(not available(), reason="needs the right to make network namespaces")
def test_a_region_is_a_place_of_its_own(echo):
    code = "import socket, sys; c = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5); c.sendall(b'hello'); print(c.recv(9))"
    with region("there", Profile(RATE_BPS, DELAY_S)) as place:
        host, port = place.reach(*echo)

        def ask(host: str, port: int) -> str:
            done = subprocess.run([*place.prefix, sys.executable, "-c", code, host, str(port)], capture_output=True, text=True, check=False)
            return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

        assert ask(host, port) == "b'hello'"
        assert "refused" in ask(*echo)  # loopback is another one in there
        place.cut()
        assert "Error" in ask(host, port)
        place.mend()
        assert ask(host, port) == "b'hello'"
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"ws{os.getpid()}n" not in names
