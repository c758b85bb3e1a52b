"""`/metrics`, `/healthz` and `/readyz` over HTTP, for Prometheus and for probes.

    /healthz    200 while the process's main loop turns, else 503: restart it
    /readyz     200 while it does what it is there for, else 503 with the reason: send nobody there
    /metrics    Prometheus's text format; 501 where prometheus-client is not installed

Nothing in it is secret, but it is no page for the internet: it listens on loopback unless an address is named.
"""

import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from weightsync.errors import Invalid, Unavailable
from weightsync.telemetry.metrics import CONTENT_TYPE, MISSING

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0  # for a request to arrive and its answer to be taken
MAX_REQUESTS = 16  # at once; further ones wait for a second, then they are hung up on

_PLAIN = "text/plain; charset=utf-8"


class Condition(NamedTuple):
    """Whether something holds, and in words why (not)."""

    holds: bool
    reason: str


Probe = Callable[[], Condition]


def parse_address(text: str, *, host: str = "127.0.0.1") -> tuple[str, int]:
    """`HOST:PORT`, `[V6]:PORT`, `:PORT` or `PORT` -> (host, port); without a host: loopback. Raises `Invalid`."""
    before, colon, after = text.rpartition(":")
    found = before.removeprefix("[").removesuffix("]") if colon else host
    if not after.isascii() or not after.isdigit() or int(after) > 65535 or (":" in found and not before.startswith("[")):
        raise Invalid(f"{text!r} is no address", remedy="give HOST:PORT, such as 127.0.0.1:9100")
    return found or host, int(after)


class HealthServer:
    """Serves until it is closed; a context manager. `address` is (host, port), port 0: any that is free."""

    def __init__(self, address: tuple[str, int], *, metrics: Callable[[], bytes | None], healthy: Probe, ready: Probe) -> None:
        """`metrics`: Prometheus's page, None where there is none. Raises `Unavailable` when the address cannot be had."""
        pages: dict[str, Callable[[], _Page]] = {
            "/metrics": lambda: _metrics(metrics()),
            "/healthz": lambda: _condition(healthy()),
            "/readyz": lambda: _condition(ready()),
        }
        handler = type("Handler", (_Handler,), {"pages": pages})
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        server = type("Server", (_Server,), {"address_family": family})
        try:
            self._server: _Server = server(address, handler)
        except OSError as error:
            where = f"{address[0]}:{address[1]}"
            raise Unavailable(f"cannot listen on {where}: {error.strerror or error}", remedy="name another --metrics address") from error
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stops listening; requests that are being answered end by themselves."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class _Page(NamedTuple):
    status: HTTPStatus
    kind: str
    body: bytes


def _condition(condition: Condition) -> _Page:
    status = HTTPStatus.OK if condition.holds else HTTPStatus.SERVICE_UNAVAILABLE
    return _Page(status, _PLAIN, f"{condition.reason}\n".encode())


def _metrics(page: bytes | None) -> _Page:
    if page is None:
        return _Page(HTTPStatus.NOT_IMPLEMENTED, _PLAIN, f"{MISSING}\n".encode())
    return _Page(HTTPStatus.OK, CONTENT_TYPE, page)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *arguments: Any) -> None:
        self._slots = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(timeout=1.0):  # the loop must go on, or nothing could stop it
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the signature is the library's
        logger.debug("a request from %s failed", client_address)


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, Callable[[], _Page]]
    timeout = TIMEOUT_S
    server_version = "weightsync"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        page = self.pages.get(self.path.partition("?")[0])
        status, kind, data = page() if page else _Page(HTTPStatus.NOT_FOUND, _PLAIN, b"/metrics /healthz /readyz\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the signature is the library's
        logger.debug(format, *args)
