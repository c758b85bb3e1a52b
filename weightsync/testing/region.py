"""A region for demos and measurements: processes that reach the rest of this machine only over a long and narrow link.

    with region("tokyo", Profile(rate_bps=100e6, delay_s=0.075)) as tokyo:
        host, port = tokyo.reach("127.0.0.1", 8333)                    # where processes of the region find that server
        subprocess.Popen([*tokyo.prefix, *command, f"http://{host}:{port}"])
        tokyo.cut()

Where the rights allow it, a region is a network namespace whose link the kernel limits, with a proxy for the delay; otherwise the proxy
does both, and nothing but good manners keeps the processes from going around it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from weightsync.errors import Unsupported
from weightsync.testing.namespaces import Place, namespace
from weightsync.testing.slow_proxy import Profile, SlowProxy


class Region:
    """See `region`."""

    def __init__(self, name: str, profile: Profile, place: Place | None, stack: ExitStack) -> None:
        self.name, self.profile = name, profile
        self._place, self._stack = place, stack
        self._proxies: list[SlowProxy] = []

    def __str__(self) -> str:
        how = "a network namespace, tbf, and a proxy for the delay" if self._place else "a proxy"
        return f"{self.name}: {self.profile} ({how})"

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command so that it runs there."""
        return self._place.prefix if self._place else ()

    @property
    def passed_bytes(self) -> int:
        """What crossed the link, both ways, through the addresses of `reach`."""
        return sum(sum(proxy.passed_bytes) for proxy in self._proxies)

    def reach(self, host: str, port: int) -> tuple[str, int]:
        """The address under which processes of the region reach a server of this machine."""
        profile = replace(self.profile, rate_bps=None) if self._place else self.profile
        proxy = SlowProxy((host, port), profile, listen=self._place.near if self._place else "127.0.0.1")
        self._proxies.append(self._stack.enter_context(proxy))
        return proxy.address

    def cut(self) -> None:
        """Nothing passes; nobody is told."""
        for proxy in self._proxies:
            proxy.cut()
        if self._place:
            self._place.cut()

    def mend(self) -> None:
        """As it was."""
        if self._place:
            self._place.mend()
        for proxy in self._proxies:
            proxy.mend()


@contextmanager
def region(name: str, profile: Profile, *, namespaces: bool = True) -> Iterator[Region]:
    """A region behind a link of that profile. `namespaces`: whether to try for one."""
    with ExitStack() as stack:
        place = None
        if namespaces:
            try:
                place = stack.enter_context(namespace(profile))
            except Unsupported:
                place = None
        yield Region(name, profile, place, stack)
