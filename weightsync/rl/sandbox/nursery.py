"""The warm process that sandboxes are forked from: one thread, clean environment, only the standard library.

    python -S -s -P -c "…; from weightsync.rl.sandbox.nursery import main; main()" CONNECTION PREFIX PLACE READ_ONLY…

`PLACE` is an empty directory of the host's. Asks for sandboxes come as messages on `CONNECTION`, a socket of whole packets, each with
the sandbox's end of a connection to the host.
"""

import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from weightsync.rl.sandbox import linux
from weightsync.rl.sandbox.cgroups import Group, Groups
from weightsync.rl.sandbox.inside import Birth, be_born

WARM = ("random", "math", "re", "json", "collections", "itertools", "functools", "string", "datetime", "typing", "dataclasses", "unittest")
DEVICES = ("null", "zero", "full", "random", "urandom")
OPEN_DIRECTORIES = ("work", "tmp", "proc", "scratch", "base", "dev")
READY = b"R"
MAX_PACKET = 1 << 16
LOOK_S = 0.05  # for children that have ended, while there are any


def main() -> None:
    """Serves until the host's end of the connection is closed."""
    connection, prefix, where, *read_only = sys.argv[1:]
    for name in WARM:
        importlib.import_module(name)
    linux.adopt_orphans()
    host = socket.socket(fileno=int(connection))
    host.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the host's matter
    place = Path(where)
    groups = Groups.open(prefix)
    try:
        root = _prepare(place, read_only)
        host.send(READY + json.dumps({"bounds": groups.controllers if groups else ()}).encode())
        _serve(host, root, groups)
    except OSError as error:
        host.send(json.dumps({"error": str(error)}).encode())
    finally:
        _end_children()
        if groups is not None:
            groups.close()


def _prepare(place: Path, read_only: Sequence[str]) -> Path:
    """The tree that all sandboxes see, in a mount namespace of this process: the programs of the machine, read-only, and empty places."""
    if os.geteuid() == 0:
        linux.unshare(linux.NEW_MOUNTS)
    else:
        user, group = os.geteuid(), os.getegid()
        linux.unshare(linux.NEW_USER | linux.NEW_MOUNTS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    linux.mount("none", Path("/"), None, linux.RECURSIVE | linux.PRIVATE)
    linux.mount("tmpfs", place, "tmpfs", linux.NO_SUID | linux.NO_DEV, "size=1m,mode=0755")
    for name in OPEN_DIRECTORIES:
        (place / name).mkdir(0o755)
    for name in DEVICES:
        (place / "dev" / name).touch()
        linux.mount(f"/dev/{name}", place / "dev" / name, None, linux.BIND)
    for path in map(Path, read_only):
        target = place / path.relative_to("/")
        target.parent.mkdir(0o755, parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
            continue
        target.mkdir(0o755, exist_ok=True)
        linux.mount(str(path), target, None, linux.BIND)
        linux.mount("none", target, None, linux.REMOUNT | linux.BIND | linux.READ_ONLY | linux.NO_SUID | linux.NO_DEV)
    linux.mount("none", place, None, linux.REMOUNT | linux.BIND | linux.READ_ONLY | linux.NO_SUID | linux.NO_DEV)
    return place


def _serve(host: socket.socket, root: Path, groups: Groups | None) -> None:
    alive = 0
    with selectors.DefaultSelector() as selector:
        selector.register(host, selectors.EVENT_READ)
        while True:
            ready = selector.select(LOOK_S if alive else None)
            alive = _reap(groups)
            if not ready:
                continue
            packet, descriptors, _, _ = socket.recv_fds(host, MAX_PACKET, 1)
            if not packet:
                return
            with socket.socket(fileno=descriptors[0]) as connection:
                _fork(json.loads(packet), root, connection, groups, host)
            alive = 1


def _fork(ask: dict[str, object], root: Path, connection: socket.socket, groups: Groups | None, host: socket.socket) -> None:
    limits = ask["limits"]
    if not isinstance(limits, dict):
        return
    group = _group(groups, limits)
    base = Path(str(ask["base"])) if ask["base"] else root / "base"
    process = os.fork()
    if process == 0:
        host.close()
        be_born(Birth(root, base, limits, group), connection)
    if group is not None:
        group.starting = process


def _group(groups: Groups | None, limits: dict[str, int]) -> Group | None:
    if groups is None:
        return None
    group = groups.take()
    group.limit(limits["memory_bytes"], limits["processes"] + 2)  # process 1, and the one that makes it
    return group


def _reap(groups: Groups | None) -> int:
    """Takes note of children that have ended; 1 while there are others."""
    while True:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if process == 0:
            return 1
        if groups is not None:
            groups.started(process)


def _end_children() -> None:
    """Their hosts are gone: they end by themselves, at once; those that do not are killed with this process's namespace."""
    for line in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        try:
            os.kill(int(line), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
