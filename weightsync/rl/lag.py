"""Policy lag as a promise, in versions and in seconds. Pure.

A group's lag is how many versions the trainer's weights are ahead of the oldest policy that drew one of its tokens, and for how long a
newer version than that has been there. It is bounded at three places: a task goes out only while what is under way will be consumed in
time (pacing, so that nothing has to be thrown away), what grew too old is given up before it is finished, and nothing older is consumed.

Why pacing keeps the bound: a step consumes the oldest groups first, `per_step` of them, and each step is one version. Whoever starts at
version s while the trainer is at v finds fewer than (bound + 1 - (v - s)) * per_step others under way, so its turn comes at version
s + bound at the latest; and a step that would leave someone too old behind waits for him.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Bound:
    """No token may be older: `versions` (0: on-policy) and `seconds`."""

    versions: int = 1
    seconds: float = inf


def room(bound: Bound, per_step: int, *, behind: int, under_way: int) -> int:
    """How many more tasks may start on weights `behind` versions old while `under_way` others are not consumed. Never negative."""
    return max(0, (bound.versions + 1 - max(0, behind)) * per_step - under_way)


def capacity(bound: Bound, per_step: int) -> int:
    """What may be under way on current weights: at least one step's groups, whatever the bound."""
    return room(bound, per_step, behind=0, under_way=0)


class Ages:
    """When versions were there, in seconds of one clock. Old ones are forgotten.

    For how long a version before the first one that was seen has been out of date is not known, as after a restart: where seconds are
    bounded it is too old.
    """

    KEPT = 4096

    def __init__(self) -> None:
        self._first = 0
        self._since: dict[int, float] = {}
        self._newest = 0

    @property
    def newest(self) -> int:
        """The highest version so far."""
        return self._newest

    def seen(self, version: int, now_s: float) -> None:
        """`version` is there. Versions never go back."""
        if version > self._newest:
            self._first = self._first or version
            self._newest = version
            self._since[version] = now_s
            for old in [one for one in self._since if one <= version - self.KEPT]:
                del self._since[old]

    def lag_s(self, version: int, now_s: float) -> float:
        """For how long something newer than `version` has been there; for at least so long where it is older than the first one seen."""
        newer = [since for other, since in self._since.items() if other > version]
        return now_s - min(newer) if newer else 0.0

    def within(self, bound: Bound, version: int, now_s: float) -> bool:
        """Whether what was drawn with `version` may be consumed now."""
        if self._newest - version > bound.versions:
            return False
        return bound.seconds == inf or (version >= self._first and self.lag_s(version, now_s) <= bound.seconds)


@dataclass
class RegionLag:
    """What was consumed from a region."""

    groups: int = 0
    max_versions: int = 0
    max_s: float = 0.0
    sum_versions: int = 0

    def add(self, versions: int, seconds: float) -> None:
        """One more group."""
        self.groups += 1
        self.sum_versions += versions
        self.max_versions, self.max_s = max(self.max_versions, versions), max(self.max_s, seconds)


def worst(regions: Mapping[str, RegionLag]) -> tuple[int, float]:
    """The greatest lag anywhere: versions, seconds."""
    return max((one.max_versions for one in regions.values()), default=0), max((one.max_s for one in regions.values()), default=0.0)
