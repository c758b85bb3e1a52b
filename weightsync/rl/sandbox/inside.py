"""From a fork of the warm interpreter to process 1 of a sandbox. Only the standard library.

    warm process --fork--> joins its control group, becomes nobody, leaves all namespaces
                   --fork--> process 1: mounts, changes its root, drops all privileges, then takes orders from the host
                               --fork--> a command

Process 1 ends with the host's connection, and everything in the sandbox with it.
"""

import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from weightsync.errors import Invalid
from weightsync.rl.sandbox import linux
from weightsync.rl.sandbox.archive import pack_tree, unpack
from weightsync.rl.sandbox.cgroups import Group
from weightsync.rl.sandbox.commands import Gone, Order, run
from weightsync.rl.sandbox.wire import Fields, frame, receive

NOBODY = 65534
USER_INSIDE = 1000
STARTED, FAILED = b"S", b"F"  # the first byte that a host hears; with STARTED comes a descriptor of process 1
ALL_NAMESPACES = (
    linux.NEW_USER | linux.NEW_PID | linux.NEW_NET | linux.NEW_IPC | linux.NEW_UTS | linux.NEW_MOUNTS | linux.NEW_CGROUP
)  # fmt: skip


@dataclass(frozen=True)
class Birth:
    """What a sandbox is made of. `root` is the tree that all of them see, `base` the directory that its files start from."""

    root: Path
    base: Path
    limits: Fields
    group: Group | None


def be_born(birth: Birth, host: socket.socket) -> NoReturn:
    """In a fork of the warm interpreter; never returns."""
    try:
        kills_file = _confine(birth)
        introduced, introduce = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(introduce)
            _first(birth, host, kills_file, introduced)
        socket.send_fds(host, [STARTED], [os.pidfd_open(process)])
    except BaseException as error:  # noqa: BLE001  the host hears of it; nothing may return into the warm process
        _tell(host, FAILED + frame({"error": str(error) or repr(error)}))
    finally:
        os._exit(0)


def _tell(host: socket.socket, data: bytes) -> None:
    try:
        host.sendall(data)
    except OSError:
        os._exit(1)  # nobody is there to hear it


def _confine(birth: Birth) -> int | None:
    kills_file = None
    if birth.group is not None:
        birth.group.join()
        kills_file = birth.group.kills_file()
    if os.geteuid() == 0 and _maps_nobody():
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        linux.set_dumpable(True)  # or its own files in /proc were root's
    user, group = os.geteuid(), os.getegid()
    linux.unshare(ALL_NAMESPACES)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{USER_INSIDE} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{USER_INSIDE} {group} 1")
    return kills_file


def _maps_nobody() -> bool:
    """False where this process itself is in a user namespace that holds one user only."""
    return any(int(start) <= NOBODY < int(start) + int(count) for start, _, count in _uid_map())


def _uid_map() -> list[list[str]]:
    return [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]


def _first(birth: Birth, host: socket.socket, kills_file: int | None, introduced: int) -> NoReturn:
    """Process 1. What it says comes after its introduction, which is over when the other end of `introduced` is closed."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # which process 1 does not hear
        _furnish(birth)
        linux.drop_privileges()
        linux.set_dumpable(False)
        os.umask(0o022)
        os.read(introduced, 1)
        os.close(introduced)
        _tell(host, frame({"ready": True}))
        _serve(birth.limits, host, kills_file)
    except (EOFError, Gone, ConnectionError):
        pass
    except BaseException as error:  # noqa: BLE001  the host hears of it
        _tell(host, frame({"error": str(error) or repr(error)}))
    finally:
        os._exit(0)


def _furnish(birth: Birth) -> None:
    """The mounts of one sandbox: its files over `base`, a place for temporary ones, its own processes in /proc."""
    root, limits = birth.root, birth.limits
    linux.mount("none", Path("/"), None, linux.RECURSIVE | linux.PRIVATE)
    linux.mount(str(root), root, None, linux.BIND | linux.RECURSIVE)
    scratch, plain = root / "scratch", linux.NO_SUID | linux.NO_DEV
    size = f"size={limits['disk_bytes']},nr_inodes={limits['files']},mode=0755"
    linux.mount("tmpfs", scratch, "tmpfs", plain, size)
    for name in ("upper", "work", "tmp"):
        (scratch / name).mkdir()
    layers = f"lowerdir={birth.base},upperdir={scratch / 'upper'},workdir={scratch / 'work'}"
    try:
        linux.mount("overlay", root / "work", "overlay", plain, layers + ",userxattr")
    except OSError:
        linux.mount("overlay", root / "work", "overlay", plain, layers)  # a kernel before 5.11
    linux.mount(str(scratch / "tmp"), root / "tmp", None, linux.BIND)
    linux.mount("proc", root / "proc", "proc", plain | linux.NO_EXEC)
    linux.unmount(scratch)
    (root / "proc/sys/user/max_user_namespaces").write_text("0")  # a namespace inside would bring privileges back
    linux.enter_root(root)
    socket.sethostname("sandbox")
    os.chdir("/work")


def _serve(limits: Fields, host: socket.socket, kills_file: int | None) -> None:
    while True:
        order, body = receive(host)
        try:
            fields, answer = _obey(order, body, limits, host, kills_file)
        except (Invalid, OSError) as error:
            fields, answer = {"invalid" if isinstance(error, Invalid) else "failed": str(error)}, b""
        _tell(host, frame(fields, answer))


def _obey(order: Fields, body: bytes, limits: Fields, host: socket.socket, kills_file: int | None) -> tuple[dict[str, Any], bytes]:
    os.chdir("/work")
    if order["do"] == "exec":
        names = ("cpu_s", "memory_bytes", "processes", "disk_bytes", "output_bytes")
        given = {name: limits[name] for name in names}
        command = Order(order["command"], body, order["wall_s"], seed=order["seed"], now_s=order["now_s"], **given)
        return run(command, host, kills_file)
    if order["do"] == "put":
        unpack(body, Path("/work"), limits["disk_bytes"])
        return {}, b""
    return {}, pack_tree(Path("/work"), limits["disk_bytes"])
