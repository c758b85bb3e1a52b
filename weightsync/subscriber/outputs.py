"""Versions as directories, from the replica of a subscriber: see `weightsync.engine.directories`."""

from pathlib import Path

from weightsync.catalog import Catalog, VersionRecord
from weightsync.engine.directories import VersionDirectories
from weightsync.failpoints import failpoint
from weightsync.format.refs import VersionRef
from weightsync.replica.replica import Replica
from weightsync.replica.restore import restore


class DirectoryOutput:
    """Writes to `directory`, made if missing, and keeps the last `keep` versions.

    Raises `Conflict` while another process writes there, `Invalid` where something of somebody else's is in the way.
    """

    def __init__(self, directory: Path, *, keep: int = 2) -> None:
        self._directories = VersionDirectories(directory, keep=keep)

    @property
    def version(self) -> VersionRef | None:
        """What `current` names, if it is ours and there."""
        return self._directories.version

    def deliver(self, catalog: Catalog, replica: Replica, record: VersionRecord) -> None:
        """Writes the version that `replica` holds and switches to it. Raises `NoSpace`, `Denied`, `Invalid`; `current` stays then."""
        failpoint("subscribe.before_out")
        self._directories.write(record.ref, lambda target: restore(catalog, record, replica, target))
        self._directories.switch(record.ref)

    def close(self) -> None:
        """Lets other writers in."""
        self._directories.close()
