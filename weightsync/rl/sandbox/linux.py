"""The kernel's calls that Python has no names for. Only the standard library: it runs inside sandboxes."""

import ctypes
import os
import struct
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

NEW_USER, NEW_PID, NEW_NET, NEW_IPC, NEW_UTS, NEW_MOUNTS, NEW_CGROUP = (
    *(0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x04000000),
    *(0x00020000, 0x02000000),
)
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, RECURSIVE, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2

_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SET_DUMPABLE, _SET_NO_NEW_PRIVILEGES, _DROP_BOUND, _SET_SUBREAPER, _SET_PARENT_DEATH = 4, 38, 24, 36, 1
_CAPABILITY_VERSION_3 = 0x20080522


def unshare(flags: int) -> None:
    """Leaves the namespaces that are shared with the parent. Raises `OSError`."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    """Mounts. Raises `OSError`."""
    _check(
        _libc.mount(source.encode(), os.fsencode(target), kind.encode() if kind else None, flags, options.encode() if options else None),
        f"mount {kind or 'bind'} on {target}",
    )


def unmount(target: Path) -> None:
    """Takes a mount away as soon as nothing uses it. Raises `OSError`."""
    _check(_libc.umount2(os.fsencode(target), DETACH), f"umount {target}")


def enter_root(root: Path) -> None:
    """Makes `root`, which is a mount, the root of this mount namespace; nothing of the old one stays in reach. Raises `OSError`."""
    os.chdir(root)
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"no system call numbers for {os.uname().machine}")
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", DETACH), "umount of the old root")
    os.chdir("/")


def set_dumpable(on: bool) -> None:
    """Whether others of the same user may look into this process, and whether its own files in /proc are its own."""
    _check(_libc.prctl(_SET_DUMPABLE, int(on), 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _check(_libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0), "prctl")


def die_with_parent(signal: int) -> None:
    """The kernel sends `signal` when the parent ends."""
    _check(_libc.prctl(_SET_PARENT_DEATH, signal, 0, 0, 0), "prctl")


def drop_privileges() -> None:
    """No capability is left, and no program that is executed brings one back."""
    _check(_libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    for capability in range(64):
        if _libc.prctl(_DROP_BOUND, capability, 0, 0, 0) != 0:
            break  # the kernel knows no further ones
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, struct.pack("<6I", *[0] * 6)), "capset")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
