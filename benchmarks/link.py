"""A link of a given speed on this machine: a network namespace behind a pair of virtual interfaces with a token bucket. Needs root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """`prefix` runs a command on the far side, which has `address`."""

    prefix: tuple[str, ...]
    address: str


@contextmanager
def link(rate: str, *, delay_ms: float = 0.0) -> Iterator[Link]:
    """What the far side sends is limited to `rate` (as `tc` spells it, such as 1gbit). Raises `CalledProcessError` without the rights."""
    name = f"ws{os.getpid() % 100_000}"
    near, far, here, there = f"{name}a", f"{name}b", "10.213.77.1", "10.213.77.2"
    inside = ("ip", "netns", "exec", name)
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        _run("ip", "addr", "add", f"{here}/24", "dev", near)
        _run("ip", "link", "set", near, "up")
        for command in (("addr", "add", f"{there}/24", "dev", far), ("link", "set", far, "up"), ("link", "set", "lo", "up")):
            _run(*inside, "ip", *command)
        _run(*inside, "tc", "qdisc", "add", "dev", far, "root", "handle", "1:", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
        if delay_ms:
            _run("tc", "qdisc", "add", "dev", near, "root", "netem", "delay", f"{delay_ms}ms")
        yield Link(inside, there)
    finally:
        subprocess.run(("ip", "link", "del", near), check=False, capture_output=True)
        _run("ip", "netns", "del", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
