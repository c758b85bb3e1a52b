"""A change that is ready to be written: places and bits lie where they are needed, nothing is left to work out in the pause."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from weightsync.engine.inplace.lanes import Lanes
from weightsync.engine.inplace.site import Site
from weightsync.errors import Corrupt, Dirty, WeightsyncError
from weightsync.failpoints import failpoint


class Scattered(NamedTuple):
    """Some lanes of a storage; `places`, `new` and `old` are as `Lanes.hold` gives them."""

    tensor: str
    lanes: Lanes
    size: int
    places: Any
    new: Any
    old: Any

    def write(self, *, old: bool = False) -> None:
        """The new bits, or the old ones."""
        self.lanes.write(self.places, self.old if old else self.new)

    def put(self) -> int:
        """Writes the new bits and reads them back; how many lanes are not so."""
        return self.lanes.put(self.places, self.new)

    def wrong(self, *, old: bool = False) -> int:
        """How many lanes are not so."""
        return self.lanes.differ(self.places, self.old if old else self.new)


class Whole(NamedTuple):
    """All lanes of a tensor that are in a storage; `new` and `old` (None: not known) are all lanes of the tensor."""

    tensor: str
    site: Site
    size: int
    new: NDArray[Any]
    old: NDArray[Any] | None

    def write(self, *, old: bool = False) -> None:
        """The new bits, or the old ones. Raises `Dirty` where these are not known."""
        self.site.write_all(self._values(old=old))

    def put(self) -> int:
        """Writes the new bits and reads them back; how many lanes are not so."""
        self.write()
        return self.wrong()

    def wrong(self, *, old: bool = False) -> int:
        """How many lanes are not so."""
        return self.site.differ_all(self._values(old=old))

    def _values(self, *, old: bool) -> NDArray[Any]:
        if not old:
            return self.new
        if self.old is None:
            raise Dirty(f"what {self.tensor!r} was before is not known", remedy="reload the engine")
        return self.old


class Plan:
    """Made by `LiveWeights.stage`. `lanes` are written; `opaque` names changed tensors that it does not, or not wholly, reach."""

    def __init__(self, entries: Sequence[Scattered | Whole], opaque: tuple[str, ...]) -> None:
        self.opaque = opaque
        self.lanes = sum(entry.size for entry in entries)
        self._entries = entries
        self._begun = 0

    def write(self, check: Callable[[], None] = lambda: None) -> int:
        """Writes all; gives how many lanes. `check` comes before each part and may raise: then what was written stays, until `undo`."""
        for number, entry in enumerate(self._entries):
            check()
            self._begun = number + 1
            failpoint("engine.write")
            entry.write()
        return self.lanes

    def put(self, check: Callable[[], None] = lambda: None) -> int:
        """`write` and `read_back` in one pass, half the time on a host. After an error what was written stays, until `undo`."""
        for number, entry in enumerate(self._entries):
            check()
            self._begun = number + 1
            failpoint("engine.write")
            _refuse(entry, entry.put())
        return self.lanes

    def read_back(self, check: Callable[[], None] = lambda: None) -> int:
        """Compares every written lane; gives how many. Raises `Corrupt` naming the first tensor that is not as written."""
        for entry in self._entries:
            check()
            wrong = entry.wrong()
            if wrong:
                raise Corrupt(
                    f"{wrong} of {entry.size} lanes of {entry.tensor!r} did not keep what was written", remedy="reload the engine"
                )
        return self.lanes

    def undo(self) -> int:
        """Writes back what was there before, of as much as `write` began, and compares it; gives how many lanes. Raises `Dirty`."""
        begun = self._entries[: self._begun]
        try:
            for entry in reversed(begun):
                entry.write(old=True)
            wrong = sum(entry.wrong(old=True) for entry in begun)
        except Dirty:
            raise
        except (WeightsyncError, RuntimeError, ValueError) as error:
            raise Dirty(f"going back failed: {error}", remedy="reload the engine") from error
        if wrong:
            raise Dirty(f"{wrong} lanes did not go back to what they were", remedy="reload the engine")
        self._begun = 0
        return sum(entry.size for entry in begun)


def _refuse(entry: Scattered | Whole, wrong: int) -> None:
    if wrong:
        raise Corrupt(f"{wrong} of {entry.size} lanes of {entry.tensor!r} did not keep what was written", remedy="reload the engine")
