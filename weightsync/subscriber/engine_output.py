"""Running engines as an output of a subscriber: all of them go to the replica's version together, proven, or none does."""

from collections.abc import Mapping

from weightsync.catalog import Catalog, VersionRecord
from weightsync.engine.changes import Changes
from weightsync.engine.proof import CANARY_FILE, MAX_CANARY_BYTES, Canary
from weightsync.engine.session import Swapper
from weightsync.engine.swap import Suspect, Swapped
from weightsync.failpoints import failpoint
from weightsync.format.refs import VersionRef
from weightsync.replica.files import small_file
from weightsync.replica.replica import Replica


class EngineOutput:
    """Hands versions to `swapper`, which it closes. A version whose files hold a canary is checked with it."""

    def __init__(self, swapper: Swapper) -> None:
        self._swapper = swapper
        self.last: Swapped | None = None

    @property
    def version(self) -> VersionRef | None:
        """What all engines serve; None: not the same, unknown, or one serves nothing. Raises `Unavailable` where one does not answer."""
        return self._swapper.version

    @property
    def dirty(self) -> Mapping[str, str]:
        """Engines that serve nothing since their weights are in doubt, and why."""
        return self._swapper.dirty

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Tokens that were made after swaps which were not proven afterwards, the newest last."""
        return tuple(self._swapper.suspects)

    def deliver(self, catalog: Catalog, replica: Replica, record: VersionRecord) -> Mapping[str, float]:
        """Brings all engines to the version that `replica` holds, or none; seconds by phase. Raises `Dirty` where one serves nothing."""
        failpoint("subscribe.before_swap")
        canary = _canary(catalog, record)
        with Changes(replica) as changes:
            self.last = done = self._swapper.swap(changes, canary)
        failpoint("subscribe.swapped")
        return {"stage": done.stage_s, "pause": done.pause_s, "verify": done.verify_s}

    def close(self) -> None:
        """Lets the engines go; they run on."""
        self._swapper.close()


def _canary(catalog: Catalog, record: VersionRecord) -> Canary | None:
    for entry in catalog.file_table(record.manifest.files).small:
        if entry.name == CANARY_FILE and entry.ref.nbytes <= MAX_CANARY_BYTES:
            return Canary.parse(small_file(catalog, entry))
    return None
