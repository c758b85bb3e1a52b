"""The server: puts the parts together, listens, drains.

server = ControlServer(open_catalog, gate, listen="127.0.0.1:7443")
port = await server.start()
...
await server.stop()
"""

import logging
from collections.abc import Callable

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from weightsync.catalog import Catalog
from weightsync.clock import SYSTEM, Clock
from weightsync.control import health
from weightsync.control.access import Gate
from weightsync.control.addresses import is_loopback
from weightsync.control.channels import ChannelServicer
from weightsync.control.fleet import FleetServicer
from weightsync.control.leases import LeaseServicer
from weightsync.control.methods import handlers
from weightsync.control.poller import Poller
from weightsync.control.reflect import reflection_handler
from weightsync.control.runs import Runs
from weightsync.control.settings import MAX_MESSAGE_BYTES, MAX_METADATA_BYTES, Limits, ServerSettings
from weightsync.control.threads import Threads
from weightsync.control.tls import ServerTls, server_credentials
from weightsync.control.versions import VersionServicer
from weightsync.errors import Invalid, Unavailable
from weightsync.v1 import channels_pb2, fleet_pb2, leases_pb2, versions_pb2

logger = logging.getLogger(__name__)

SERVICES = (
    versions_pb2.DESCRIPTOR.services_by_name["VersionService"],
    channels_pb2.DESCRIPTOR.services_by_name["ChannelService"],
    fleet_pb2.DESCRIPTOR.services_by_name["FleetService"],
    leases_pb2.DESCRIPTOR.services_by_name["LeaseService"],
)
UNARY_CALLS = 1024  # at once, beside the watches


class ControlServer:
    """Serves the runs that `open_catalog` opens by name. Create, start and stop it on one event loop."""

    def __init__(
        self,
        open_catalog: Callable[[str], Catalog],
        gate: Gate,
        *,
        listen: str = "127.0.0.1:0",
        tls: ServerTls | None = None,
        insecure: bool = False,
        settings: ServerSettings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        """`listen`: HOST:PORT; port 0 takes a free one. Raises `Invalid` for plaintext beyond this host without `insecure`."""
        self._settings = settings or ServerSettings()
        self._listen, self._tls = listen, tls
        if tls is None and not insecure and not is_loopback(listen):
            raise Invalid(
                f"{listen} can be reached from elsewhere, and without TLS everybody on the way can read and change what is said",
                remedy="give a certificate and key, listen on 127.0.0.1, or say --insecure",
            )
        limits = self._settings.limits
        self._threads = Threads("control", limits.threads, limits.waiting)
        self._runs = Runs(open_catalog, self._threads, self._settings, clock)
        self._poller = Poller(self._runs, self._settings, clock)
        self._health = health.HealthServicer([service.full_name for service in SERVICES])
        self._gate = gate
        notify = self._poller.notify
        servicers = (
            VersionServicer(self._runs, self._threads, notify, limits, clock),
            ChannelServicer(self._runs, self._threads, notify),
            FleetServicer(self._runs, self._settings.pace, clock),
            LeaseServicer(self._runs, self._threads, limits, clock),
        )
        self._services: tuple[tuple[ServiceDescriptor, object], ...] = (
            *zip(SERVICES, servicers, strict=True),
            (health.SERVICE, self._health),
        )
        self._server: grpc.aio.Server | None = None

    async def start(self) -> str:
        """Listens; HOST:PORT as it is now. Raises `Unavailable` when the address cannot be had."""
        limits = self._settings.limits
        server = grpc.aio.server(options=options(limits), maximum_concurrent_rpcs=limits.watchers + UNARY_CALLS)
        server.add_generic_rpc_handlers(handlers(self._services, self._gate, limits))
        if self._settings.reflection:
            server.add_generic_rpc_handlers([reflection_handler([service.full_name for service in SERVICES], self._gate)])
        try:
            if self._tls is None:
                port = server.add_insecure_port(self._listen)
            else:
                port = server.add_secure_port(self._listen, server_credentials(self._tls))
        except RuntimeError as error:
            raise Unavailable(f"{self._listen} cannot be listened on: {error}", remedy="is another server running there?") from None
        await server.start()
        self._server = server
        self._poller.start()
        self._health.start()
        return f"{self._listen.rpartition(':')[0]}:{port}"

    async def stop(self) -> None:
        """Drains: unready first, then all streams end with the position at which to go on elsewhere, then the rest."""
        if self._server is None:
            return
        self._health.end()
        self._runs.end(Unavailable("this server stops", remedy="go on at another one"))
        await self._server.stop(self._settings.pace.drain_s)
        await self._poller.close()
        self._threads.close()
        self._server = None

    def fleets(self) -> dict[str, list[fleet_pb2.Subscriber]]:
        """Subscribers by run, of the runs that somebody has asked about lately. On the event loop only."""
        return self._runs.fleets()


def options(limits: Limits) -> list[tuple[str, int]]:
    """gRPC's arguments. The defaults drop clients that connect in bursts or ping when nothing is sent."""
    return [
        ("grpc.so_reuseport", 0),  # a second server on the same port is an error, not a silent share
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.max_concurrent_streams", limits.connections_streams),
        ("grpc.server.max_pending_requests", limits.watchers),
        ("grpc.server.max_pending_requests_hard_limit", 2 * limits.watchers),
        ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 4_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
    ]
