"""Asking a control plane. Answers are hints: what one acts on is read from the store and checked.

    with ControlClient("127.0.0.1:7443", token_file=path) as client:
        client.get_channel("my-run", "serving").move.version
        with client.watch("my-run", "serving") as watch:
            for event in watch: ...

Every method raises the errors of `weightsync.errors`, the server's as if they had happened here.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from weightsync.control.dial import Connection
from weightsync.control.statuses import error_of
from weightsync.control.tls import ClientTls
from weightsync.control.watch import Watch
from weightsync.format.keys import LATEST
from weightsync.v1 import channels_pb2, fleet_pb2, leases_pb2, version_pb2, versions_pb2

M = TypeVar("M", bound=Message)
P = TypeVar(
    "P",
    versions_pb2.ListVersionsResponse,
    channels_pb2.ListChannelsResponse,
    channels_pb2.ChannelHistoryResponse,
    fleet_pb2.ListSubscribersResponse,
)

_VERSIONS = "/weightsync.v1.VersionService/"
_CHANNELS = "/weightsync.v1.ChannelService/"
_FLEET = "/weightsync.v1.FleetService/"
_LEASES = "/weightsync.v1.LeaseService/"


class ControlClient:
    """One server. Safe to use from many threads. It connects, and connects again, when it is used."""

    def __init__(
        self,
        address: str,
        *,
        tls: ClientTls | None = None,
        token: str | None = None,
        token_file: Path | None = None,
        insecure: bool = False,
        timeout_s: float = 10.0,
    ) -> None:
        """`address`: HOST:PORT. `insecure`: a token may go beyond this host in plaintext. `timeout_s` bounds every call but streams."""
        self._connection = Connection(address, tls=tls, token=token, token_file=token_file, insecure=insecure)
        self._timeout_s = timeout_s

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return self._connection.address

    # ----------------------------------------------------------------------------------------------------------- versions

    def get_version(self, run: str, version: int) -> version_pb2.Version:
        """One version. Raises `NotFound`, `Compacted`."""
        request = versions_pb2.GetVersionRequest(run=run, version=version)
        return self._call(_VERSIONS + "GetVersion", request, versions_pb2.GetVersionResponse).version

    def list_versions(self, run: str, *, page_size: int = 0) -> Iterator[versions_pb2.CommittedVersion]:
        """The committed versions, newest first; asks for further pages as they are needed."""
        request = versions_pb2.ListVersionsRequest(run=run, page_size=page_size)
        for page in self._pages(_VERSIONS + "ListVersions", request, versions_pb2.ListVersionsResponse):
            yield from page.versions

    def watch(self, run: str, channel: str = LATEST, *, after_sequence: int | None = None) -> Watch:
        """The channel's moves after a sequence; None: from where it is now on."""
        return Watch(self._connection, run, channel, after_sequence)

    def notify(self, run: str, channel: str = LATEST) -> None:
        """Something new is in the store."""
        self._call(_VERSIONS + "Notify", versions_pb2.NotifyRequest(run=run, channel=channel), versions_pb2.NotifyResponse)

    # ----------------------------------------------------------------------------------------------------------- channels

    def get_channel(self, run: str, channel: str = LATEST) -> version_pb2.Channel:
        """Where a channel points. Raises `NotFound`."""
        request = channels_pb2.GetChannelRequest(run=run, channel=channel)
        return self._call(_CHANNELS + "GetChannel", request, channels_pb2.GetChannelResponse).channel

    def list_channels(self, run: str, *, page_size: int = 0) -> Iterator[version_pb2.Channel]:
        """All channels, by name."""
        request = channels_pb2.ListChannelsRequest(run=run, page_size=page_size)
        for page in self._pages(_CHANNELS + "ListChannels", request, channels_pb2.ListChannelsResponse):
            yield from page.channels

    def move_channel(self, run: str, channel: str, record: bytes, *, expected_sequence: int) -> version_pb2.Channel:
        """Has a move swapped in that was made with `Catalog.plan_move`: `record` is its `envelope.data`. Safe to repeat as it is."""
        request = channels_pb2.MoveChannelRequest(run=run, channel=channel, record=record, expected_sequence=expected_sequence)
        return self._call(_CHANNELS + "MoveChannel", request, channels_pb2.MoveChannelResponse).channel

    def channel_history(self, run: str, channel: str = LATEST, *, page_size: int = 0) -> Iterator[channels_pb2.PastMove]:
        """The channel's moves, newest first."""
        request = channels_pb2.ChannelHistoryRequest(run=run, channel=channel, page_size=page_size)
        for page in self._pages(_CHANNELS + "ChannelHistory", request, channels_pb2.ChannelHistoryResponse):
            yield from page.moves

    # -------------------------------------------------------------------------------------------------------------- fleet

    def register(
        self, run: str, subscriber: str, *, region: str = "", engine: str = "", channel: str = LATEST
    ) -> fleet_pb2.RegisterResponse:
        """Makes a subscriber known. The answer says how often to report."""
        request = fleet_pb2.RegisterRequest(run=run, subscriber=subscriber, region=region, engine=engine, channel=channel)
        return self._call(_FLEET + "Register", request, fleet_pb2.RegisterResponse)

    def report(self, run: str, subscriber: str, report: fleet_pb2.SubscriberReport) -> None:
        """Says how a subscriber is. Raises `NotFound` when the server does not know it any more: register again."""
        self._call(_FLEET + "Report", fleet_pb2.ReportRequest(run=run, subscriber=subscriber, report=report), fleet_pb2.ReportResponse)

    def list_subscribers(self, run: str, *, region: str = "", page_size: int = 0) -> Iterator[fleet_pb2.Subscriber]:
        """All subscribers, by name."""
        request = fleet_pb2.ListSubscribersRequest(run=run, region=region, page_size=page_size)
        for page in self._pages(_FLEET + "ListSubscribers", request, fleet_pb2.ListSubscribersResponse):
            yield from page.subscribers

    def watch_fleet(self, run: str) -> Iterator[fleet_pb2.WatchFleetResponse]:
        """All subscribers, then what changes. Does not reconnect: a new stream starts with everything. Closing the generator ends it."""
        call: Any = self._connection.stream(_FLEET + "WatchFleet", fleet_pb2.WatchFleetRequest(run=run), fleet_pb2.WatchFleetResponse)
        try:
            yield from call
        except grpc.RpcError as error:
            raise error_of(error, self.address) from None
        finally:
            call.cancel()

    # ------------------------------------------------------------------------------------------------------------- leases

    def acquire(self, run: str, holder: str, version: int, *, ttl_s: float = 0.0) -> leases_pb2.Lease:
        """Keeps a version from being collected; 0 s: for as long as the server grants. Raises `Compacted`, `NotFound`."""
        request = leases_pb2.AcquireRequest(run=run, holder=holder, version=version, ttl_ms=int(ttl_s * 1000))
        return self._call(_LEASES + "Acquire", request, leases_pb2.AcquireResponse).lease

    def renew(self, run: str, holder: str, version: int, *, ttl_s: float = 0.0) -> leases_pb2.Lease:
        """Extends a lease. Raises `NotFound` when it has expired."""
        request = leases_pb2.RenewRequest(run=run, holder=holder, version=version, ttl_ms=int(ttl_s * 1000))
        return self._call(_LEASES + "Renew", request, leases_pb2.RenewResponse).lease

    def release(self, run: str, holder: str, version: int) -> None:
        """Gives a lease back."""
        self._call(_LEASES + "Release", leases_pb2.ReleaseRequest(run=run, holder=holder, version=version), leases_pb2.ReleaseResponse)

    # ---------------------------------------------------------------------------------------------------------------- rest

    def healthy(self) -> bool:
        """Whether the server says that it serves. Raises `Unavailable` when it does not answer."""
        answer = self._call("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Ends all calls and watches."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _pages(self, path: str, request: Any, response: type[P]) -> Iterator[P]:
        """All pages, each asked for when it is needed."""
        while True:
            page = self._call(path, request, response)
            yield page
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return

    def _call(self, path: str, request: Message, response: type[M]) -> M:
        return self._connection.call(path, request, response, self._timeout_s)
