"""Every error that weightsync raises on purpose, named by what the caller must do.

    WeightsyncError
    ├── Unavailable     retry later; nothing is known to be wrong        exit 3
    │   ├── OutcomeUnknown   a write may or may not have been applied: read back before retrying
    │   ├── Denied           credentials or file permissions: fix them, then retry
    │   │   └── Unauthenticated   who calls is not known: give a credential that holds
    │   └── NoSpace          disk or shared memory is full: free some, then retry
    ├── Conflict        re-read and decide again                         exit 1
    │   └── AlreadyExists    a create-only key is taken by other bytes
    ├── Fenced          stop: a newer publisher holds the run            exit 1
    ├── Corrupt         refuse, and keep serving what was verified       exit 1
    ├── Compacted       the version is gone for good; take the way on    exit 1
    ├── Dirty           an engine may hold a mix: it must not serve      exit 1
    ├── NotFound        nothing stands under that name                   exit 2
    ├── Invalid         the call or its input is wrong: fix it           exit 2
    └── Unsupported     upgrade, or use another store                    exit 2

The message names the culprit; `remedy` says what to do about it.
"""

from typing import ClassVar


class WeightsyncError(Exception):
    """Base of all errors; `kind` is stable and goes into `--json` output, metrics and gRPC details."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class Unavailable(WeightsyncError):
    """The store, the network or a peer did not answer as it should; retrying may help."""

    kind = "unavailable"
    exit_code = 3


class OutcomeUnknown(Unavailable):
    """A write was sent and its reply lost: it may have been applied."""

    kind = "outcome_unknown"


class Denied(Unavailable):
    """The store or the file system refuses us."""

    kind = "denied"


class Unauthenticated(Denied):
    """A server does not know who calls: no credential, or one that does not hold."""

    kind = "unauthenticated"


class NoSpace(Unavailable):
    """A disk or the shared memory is full."""

    kind = "no_space"


class Conflict(WeightsyncError):
    """Somebody else changed what we were about to change."""

    kind = "conflict"


class AlreadyExists(Conflict):
    """A create-only key holds an object already."""

    kind = "already_exists"


class Fenced(WeightsyncError):
    """A publisher with a higher epoch has taken over."""

    kind = "fenced"


class Corrupt(WeightsyncError):
    """Bytes are not what a verified record says they are, or are malformed."""

    kind = "corrupt"


class Compacted(WeightsyncError):
    """The version was collected, or is about to be."""

    kind = "compacted"


class Dirty(WeightsyncError):
    """A live engine's weights are not known to be one version: it serves nothing until it is reloaded and proven."""

    kind = "dirty"


class NotFound(WeightsyncError):
    """No object, run, version or channel of that name."""

    kind = "not_found"
    exit_code = 2


class Invalid(WeightsyncError):
    """The call or its input cannot be used as it is."""

    kind = "invalid"
    exit_code = 2


class Unsupported(WeightsyncError):
    """Well formed, but beyond this release or this store."""

    kind = "unsupported"
    exit_code = 2
