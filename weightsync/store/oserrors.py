"""Errors of the operating system, by what the caller must do."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from weightsync.errors import Denied, Invalid, NoSpace, NotFound, Unavailable, WeightsyncError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISSING = {errno.ENOENT, errno.ENOTDIR}
_MISNAMED = {errno.ELOOP, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG}


def from_os_error(error: OSError, doing: str) -> WeightsyncError:
    """The error to raise instead of `error`; `doing` is what failed, with the path or key."""
    message = f"{doing}: {error.strerror or error}"
    if error.errno in _FULL:
        return NoSpace(message, remedy="free some space or raise the quota, then retry")
    if error.errno in _REFUSED:
        return Denied(message, remedy="give this user access, then retry")
    if error.errno in _MISSING:
        return NotFound(message)
    if error.errno in _MISNAMED:
        return Invalid(message, remedy="plain files and directories are wanted there, no symbolic links")
    return Unavailable(message, remedy="check the file system, then retry")


@contextmanager
def named_errors(doing: str) -> Iterator[None]:
    """Turns an `OSError` inside into one of `weightsync.errors`."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, doing) from error
