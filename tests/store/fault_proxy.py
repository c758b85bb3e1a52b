"""A proxy between client and S3 server that does what networks, proxies and servers do to requests.

    proxy.add(status(503, "SlowDown"), method="GET", times=2)     two GETs are answered so and not forwarded
    proxy.add(cut(1000), path="/shards/")                         the body of one answer ends after 1,000 bytes, with a clean FIN

Rules are looked at in order; the first that matches and is not used up acts. `proxy.requests` lists what came in.
"""

import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

HOP = {"connection", "keep-alive", "transfer-encoding", "expect", "content-length"}


@dataclass
class Exchange:
    """A request, and the answer once there is one. Actions change either; `close` hangs up instead of answering."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    answer: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    sent_bytes: int | None = None  # of `data`; None is all
    close: bool = False
    pace: Callable[[], object] | None = None  # called before each byte of the body
    resign: bool = False


Action = Callable[[Exchange, Callable[[], None]], None]


@dataclass
class Rule:
    action: Action
    matches: Callable[[Exchange], bool]
    skip: int
    times: int


class FaultProxy:
    def __init__(self, upstream: str, credentials: Mapping[str, str]) -> None:
        self._upstream = urlsplit(upstream).netloc
        self._credentials = Credentials(credentials["AWS_ACCESS_KEY_ID"], credentials["AWS_SECRET_ACCESS_KEY"])
        self._lock = threading.Lock()
        self.rules: list[Rule] = []
        self.requests: list[Exchange] = []

    def add(self, action: Action, *, method: str = "", path: str = "", header: str = "", skip: int = 0, times: int = 1) -> None:
        """Lets `action` meet `times` requests after `skip` others of that method, with `path` in path and query, and that header."""

        def matches(x: Exchange) -> bool:
            return method in ("", x.method) and path in x.path and (not header or any(header in name.lower() for name in x.headers))

        self.rules.append(Rule(action, matches, skip, times))

    def handle(self, x: Exchange) -> None:
        with self._lock:
            self.requests.append(x)
            action = self._choose(x)
        action(x, lambda: self.forward(x))

    def _choose(self, x: Exchange) -> Action:
        for rule in self.rules:
            if rule.times and rule.matches(x):
                rule.skip -= 1
                if rule.skip < 0:
                    rule.times -= 1
                    return rule.action
        return lambda _, forward: forward()

    def forward(self, x: Exchange) -> None:
        headers = {name: value for name, value in x.headers.items() if name.lower() not in HOP}
        if x.resign:
            request = AWSRequest(x.method, f"http://{headers['Host']}{x.path}", headers, x.body)
            del request.headers["Authorization"]
            S3SigV4Auth(self._credentials, "s3", "us-east-1").add_auth(request)
            headers = dict(request.headers.items())
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        connection.request(x.method, x.path, x.body, headers | {"Content-Length": str(len(x.body))})
        answer = connection.getresponse()
        x.status, x.data = answer.status, answer.read()
        x.answer = {name: value for name, value in answer.getheaders() if name.lower() not in HOP}
        x.answer["Content-Length"] = answer.headers.get("Content-Length") or str(len(x.data))
        connection.close()


def status(code: int, error: str, **headers: str) -> Action:
    """Answers with an S3 error instead of forwarding."""

    def act(x: Exchange, _: Callable[[], None]) -> None:
        x.status, x.data = code, f'<?xml version="1.0"?><Error><Code>{error}</Code><Message>injected</Message></Error>'.encode()
        x.answer = {"Content-Type": "application/xml", "Content-Length": str(len(x.data))} | {
            k.replace("_", "-"): v for k, v in headers.items()
        }

    return act


def after(change: Callable[[Exchange], Any]) -> Action:
    """Forwards, then changes the answer."""

    def act(x: Exchange, forward: Callable[[], None]) -> None:
        forward()
        change(x)

    return act


def before(change: Callable[[Exchange], Any]) -> Action:
    """Changes the request, then forwards it."""

    def act(x: Exchange, forward: Callable[[], None]) -> None:
        change(x)
        forward()

    return act


def cut(sent_bytes: int) -> Action:
    """The answer's body ends early, with a clean FIN."""
    return after(lambda x: setattr(x, "sent_bytes", sent_bytes))


def lose_reply() -> Action:
    """The server does what it is asked to; the client sees a closed connection."""
    return after(lambda x: setattr(x, "close", True))


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def strip(header: str) -> Action:
    """A server that does not know `header`."""

    def change(x: Exchange) -> None:
        x.headers = {name: value for name, value in x.headers.items() if name.lower() != header}
        x.resign = True

    return before(change)


@contextmanager
def serving(proxy: FaultProxy) -> Iterator[str]:
    """Runs `proxy`; yields its endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            x = Exchange(self.command, self.path, dict(self.headers.items()), self.rfile.read(int(self.headers.get("Content-Length", 0))))
            proxy.handle(x)
            if x.close:
                self.close_connection = True
                return
            self.send_response_only(x.status)
            for name, value in x.answer.items():
                self.send_header(name, value)
            self.end_headers()
            for part in (x.data[i : i + 1] for i in range(len(x.data))) if x.pace else [x.data[: x.sent_bytes]]:
                if x.pace:
                    x.pace()
                if self.command != "HEAD":
                    self.wfile.write(part)
            self.close_connection = self.close_connection or x.sent_bytes is not None

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815  names of the base class

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:  # a client that hangs up is part of the test
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
