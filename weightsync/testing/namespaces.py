"""Places on this machine that are as far away as another region: a network namespace behind a pair of virtual interfaces. Needs root.

    with namespace(Profile(rate_bps=1e9)) as place:
        subprocess.run([*place.prefix, "curl", f"http://{place.near}:8000"])   # runs in there; what listens on `place.near` it reaches

The kernel's token bucket limits the rate of both directions. Delay is not the kernel's: put a `SlowProxy` on `place.near`.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weightsync.errors import Unsupported
from weightsync.testing.slow_proxy import Profile

NAME = re.compile(r"ws(\d+)n(\d+)")
NETWORK = "10.213.{}.{}"
MAX_PLACES = 250
QUEUE = ("burst", "256kb", "latency", "50ms")


@dataclass(frozen=True)
class Place:
    """`prefix` runs a command in it. It has the address `far`; the rest of the machine has `near` for it."""

    prefix: tuple[str, ...]
    far: str
    near: str
    interface: str

    def cut(self) -> None:
        """As a cable that is pulled."""
        _run("ip", "link", "set", self.interface, "down")

    def mend(self) -> None:
        """Puts it back."""
        _run("ip", "link", "set", self.interface, "up")


def available() -> bool:
    """Whether this process may make places."""
    try:
        with namespace(Profile(rate_bps=1e9)):
            return True
    except Unsupported:
        return False


@contextmanager
def namespace(profile: Profile) -> Iterator[Place]:
    """A place behind a link with the rate of `profile`. Raises `Unsupported` without the rights or the programs."""
    _remove_left_behind()
    number = _free_number()
    name = f"ws{os.getpid()}n{number}"
    near, far = f"ws{number}a", f"ws{number}b"
    inside = ("ip", "netns", "exec", name)
    place = Place(inside, NETWORK.format(number, 2), NETWORK.format(number, 1), near)
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        _run("ip", "addr", "add", f"{place.near}/24", "dev", near)
        _run("ip", "link", "set", near, "up")
        for command in (("addr", "add", f"{place.far}/24", "dev", far), ("link", "set", far, "up"), ("link", "set", "lo", "up")):
            _run(*inside, "ip", *command)
        if profile.rate_bps is not None:
            for prefix, interface in (((), near), (inside, far)):
                rate = f"{int(profile.rate_bps)}bit"
                _run(*prefix, "tc", "qdisc", "add", "dev", interface, "root", "handle", "1:", "tbf", "rate", rate, *QUEUE)
        yield place
    finally:
        _remove(name)


def _free_number() -> int:
    used = _run("ip", "-o", "-4", "addr")
    first = os.getpid() % MAX_PLACES  # processes that start together look in different places
    numbers = ((first + step) % MAX_PLACES for step in range(MAX_PLACES))
    free = (number for number in numbers if f" {NETWORK.format(number, '')}" not in used)
    number = next(free, None)
    if number is None:
        raise Unsupported("all numbers of network namespaces are taken", remedy="end the processes that hold them")
    return number


def _remove_left_behind() -> None:
    """Places of processes that were killed."""
    for found in NAME.finditer(_run("ip", "netns", "list")):
        if not Path(f"/proc/{found[1]}").exists():
            _remove(found[0])


def _remove(name: str) -> None:
    """The namespace and its interfaces. What still runs in it keeps it alive, without a link."""
    number = NAME.fullmatch(name)
    if number is not None:
        with suppress(Unsupported):  # gone already
            _run("ip", "link", "del", f"ws{number[2]}a")
    with suppress(Unsupported):
        _run("ip", "netns", "del", name)


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise Unsupported(
            f"{' '.join(command)}: {said.strip()}", remedy="network namespaces need root, iproute2 and the kernel's tbf"
        ) from error
