"""grpc.health.v1: whether this server serves. For everybody, and so bounded.

gRPC's own servicer writes to its watchers under a lock, so that a peer that reads nothing could hold up the end of the server.
"""

import asyncio
from collections.abc import Collection
from typing import Any

from grpc_health.v1 import health_pb2 as pb

from weightsync.control.methods import Call
from weightsync.errors import NotFound, Unavailable

MAX_WATCHERS = 128

SERVICE: Any = pb.DESCRIPTOR.services_by_name["Health"]
SERVING: Any = pb.HealthCheckResponse.SERVING
NOT_SERVING: Any = pb.HealthCheckResponse.NOT_SERVING


class HealthServicer:
    """One status for all services: they live and end together."""

    def __init__(self, services: Collection[str]) -> None:
        self._services = frozenset({"", *services})
        self._status: Any = NOT_SERVING
        self._changed = asyncio.Event()
        self._watchers = 0
        self._over = False

    def start(self) -> None:
        """Serving from now on."""
        self._set(SERVING)

    def end(self) -> None:
        """Not serving any more; watches end."""
        self._over = True
        self._set(NOT_SERVING)

    async def check(self, request: pb.HealthCheckRequest, _call: Call) -> pb.HealthCheckResponse:
        """The status."""
        if request.service not in self._services:
            raise NotFound(f"there is no service {request.service[:80]!r} here", remedy="ask for '', which is the whole server")
        return pb.HealthCheckResponse(status=self._status)

    async def list(self, _request: Any, _call: Call) -> Any:
        """The status of each."""
        messages: Any = pb  # older releases have no such call
        return messages.HealthListResponse(statuses={name: pb.HealthCheckResponse(status=self._status) for name in self._services})

    async def watch(self, request: pb.HealthCheckRequest, call: Call) -> None:
        """The status, and then its changes."""
        if self._watchers >= MAX_WATCHERS:
            raise Unavailable(f"{MAX_WATCHERS} watches of the health are open already", remedy="use Check")
        self._watchers += 1
        try:
            await self._watch(request.service in self._services, call)
        finally:
            self._watchers -= 1

    async def _watch(self, known: bool, call: Call) -> None:
        while True:
            changed = self._changed
            status = self._status if known else pb.HealthCheckResponse.SERVICE_UNKNOWN
            await call.write(pb.HealthCheckResponse(status=status).SerializeToString())
            if self._over:
                return
            await changed.wait()

    def _set(self, status: Any) -> None:
        self._status = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
