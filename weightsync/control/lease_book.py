"""What leases a run has, without reading them all for each new one: looked at every few seconds, kept up with our own writes meanwhile.

Another server may grant leases between two looks, so that caps can be exceeded by what both grant in that time.
"""

from collections import Counter

from weightsync.catalog import Catalog
from weightsync.catalog.leases import holder_of
from weightsync.clock import Clock

LOOK_S = 5.0  # the store is looked at again after so long
MISS_S = 0.5  # or after so long when something is not found that another server may have written


class LeaseBook:
    """One run's. All methods but `held` block; not for several threads at once."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._ends_ms: dict[tuple[str, int], int] = {}
        self._looked_s: float | None = None

    def holds(self, holder: str, version: int) -> bool:
        """Whether the lease stands and has not expired."""
        self._look(LOOK_S)
        if not self._stands(holder, version):
            self._look(MISS_S)
        return self._stands(holder, version)

    def held(self) -> Counter[str]:
        """How many each holder has, as of the last look."""
        now_ms = self._now_ms()
        return Counter(holder for (holder, _), ends_ms in self._ends_ms.items() if ends_ms > now_ms)

    def put(self, holder: str, version: int, expires_ms: int) -> None:
        """Writes it. Raises as `Catalog.put_lease`."""
        self._catalog.put_lease(holder, version, expires_ms)
        self._ends_ms[holder, version] = expires_ms

    def drop(self, holder: str, version: int) -> None:
        """Removes it; a missing one is fine."""
        self._catalog.drop_lease(holder, version)
        self._ends_ms.pop((holder, version), None)

    def _stands(self, holder: str, version: int) -> bool:
        return self._ends_ms.get((holder, version), 0) > self._now_ms()

    def _look(self, after_s: float) -> None:
        now_s = self._clock.monotonic_s()
        if self._looked_s is not None and now_s - self._looked_s < after_s:
            return
        self._ends_ms = {(holder_of(lease), lease.version): lease.expires_ms for lease in self._catalog.leases()}
        self._looked_s = now_s
        now_ms = self._now_ms()
        for (holder, version), ends_ms in list(self._ends_ms.items()):
            if ends_ms <= now_ms:  # its holder acquires it again if it lives, and finds out when it next renews
                self.drop(holder, version)

    def _now_ms(self) -> int:
        return int(self._clock.now_s() * 1000)
