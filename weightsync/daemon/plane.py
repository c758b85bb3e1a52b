"""The control plane over gRPC, as daemons and `status` see it."""

import logging
from collections.abc import Iterator

from weightsync.config import Settings
from weightsync.control.client import ControlClient
from weightsync.control.tls import ClientTls
from weightsync.control.watch import Watch
from weightsync.daemon.hints import Sight
from weightsync.daemon.messages import report_of
from weightsync.errors import Invalid
from weightsync.telemetry.facts import SubscriberFact

logger = logging.getLogger(__name__)

TICK_S = 1.0  # how often a watch without news says that it is there


def connect(settings: Settings) -> ControlClient:
    """A client of the server that the settings name; it connects when it is used. Raises `Invalid` when they name none."""
    if settings.server is None:
        raise Invalid("no server was named", remedy="give --server HOST:PORT, or set WEIGHTSYNC_SERVER")
    files = (settings.server_ca, settings.server_cert, settings.server_key)
    tls = ClientTls(*files, settings.server_name) if settings.server_tls or any(files) else None
    return ControlClient(settings.server, tls=tls, token_file=settings.token_file, insecure=settings.server_insecure)


class GrpcPlane:
    """A `ControlPlane`. Closing it ends all calls."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client
        self.address = client.address
        self._watches: list[Watch] = []

    def watch(self, run: str, channel: str, after: int | None) -> Iterator[Sight]:
        """News of a channel. It reconnects by itself; closing the generator ends it."""
        with self._client.watch(run, channel, after_sequence=after) as watch:
            self._watches.append(watch)
            try:
                while True:
                    event = watch.next(TICK_S)
                    yield Sight(event.sequence if event else None, watch.connected)
            finally:
                self._watches.remove(watch)

    def register(self, run: str, who: SubscriberFact) -> float:
        """Makes a subscriber known; returns how often to report, in seconds."""
        answer = self._client.register(run, who.name, region=who.region, engine=who.engine, channel=who.channel)
        return answer.report_interval_ms / 1000

    def report(self, run: str, who: SubscriberFact) -> None:
        """Says how it is."""
        self._client.report(run, who.name, report_of(who))

    def notify(self, run: str, channel: str) -> None:
        """Something is new in the store."""
        self._client.notify(run, channel)

    def close(self) -> None:
        """Ends all calls."""
        for watch in list(self._watches):  # before their channel, which they would try again
            watch.close()
        self._client.close()
