"""A run's facts, asked from a control plane."""

from itertools import islice

from weightsync.clock import SYSTEM, Clock
from weightsync.control.client import ControlClient
from weightsync.daemon.messages import channel_fact, subscriber_fact, version_fact
from weightsync.daemon.observe import VERSIONS, ReadOnce
from weightsync.errors import Compacted, NotFound
from weightsync.telemetry.facts import RunFacts, VersionFact
from weightsync.v1 import versions_pb2


class ServerObserver:
    """Asks a control plane about a run."""

    def __init__(self, client: ControlClient, run: str, *, versions: int = VERSIONS, clock: Clock = SYSTEM) -> None:
        self._client, self._run, self._limit, self._clock = client, run, versions, clock
        self._known = ReadOnce()

    def look(self) -> RunFacts:
        """The run as the server sees it now. Raises `NotFound`, `Unavailable`, `Denied`."""
        channels = tuple(channel_fact(channel) for channel in self._client.list_channels(self._run))
        subscribers = tuple(subscriber_fact(one) for one in self._client.list_subscribers(self._run, page_size=500))
        return RunFacts(self._run, self._clock.now_s(), channels, tuple(self._versions()), subscribers)

    def _versions(self) -> list[VersionFact]:
        newest = list(islice(self._client.list_versions(self._run, page_size=self._limit), self._limit))
        return self._known.facts([((one.version, one.manifest.digest), one) for one in newest], self._version)

    def _version(self, one: versions_pb2.CommittedVersion) -> VersionFact | None:
        try:
            return version_fact(self._client.get_version(self._run, one.version), one.committed_ms)
        except (Compacted, NotFound):
            return None
