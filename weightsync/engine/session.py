"""The engines of one service on this host, changed together: see `swap` for what happens when something fails.

swapper = Swapper({"vllm": engine}, SwapSettings(mode=Mode.WAIT))
with Changes(replica) as changes:
    swapper.swap(changes)            # all serve the replica's version now, proven; or an error, and none does
swapper.dirty                        # who must not serve, and why
"""

from collections import deque
from collections.abc import Mapping

from weightsync.clock import SYSTEM, Clock
from weightsync.engine.api import Engine
from weightsync.engine.changes import Changes
from weightsync.engine.proof import Canary
from weightsync.engine.seat import Seat, each
from weightsync.engine.swap import Suspect, Swap, Swapped, SwapSettings
from weightsync.errors import Invalid, WeightsyncError
from weightsync.format.refs import VersionRef

MAX_SUSPECTS = 1000
MAX_HOLD_S = 300.0  # between attempts at a version that failed again and again


class Swapper:
    """`engines` by name; closing it closes them. For one thread."""

    def __init__(self, engines: Mapping[str, Engine], settings: SwapSettings | None = None, *, clock: Clock = SYSTEM) -> None:
        if not engines:
            raise Invalid("no engine was named")
        self.settings = settings or SwapSettings()
        self.suspects: deque[Suspect] = deque(maxlen=MAX_SUSPECTS)
        self._seats = [Seat(name, engine) for name, engine in engines.items()]
        self._clock = clock
        self._failure: tuple[VersionRef, WeightsyncError] | None = None
        self._failures, self._not_before_s = 0, 0.0
        self._unproven: dict[Seat, VersionRef] = {}  # where changing in place did not lead to the version: the next attempt reloads

    @property
    def version(self) -> VersionRef | None:
        """What all of them serve; None: not the same, not known, or one of them serves nothing. Raises what an adapter raises."""
        if self.dirty:
            return None
        found = set(self._versions().values())
        return found.pop() if len(found) == 1 else None

    @property
    def dirty(self) -> dict[str, str]:
        """Engines that serve nothing since their weights are in doubt, and why."""
        return {seat.name: seat.dirty for seat in self._seats if seat.dirty}

    def swap(self, changes: Changes, canary: Canary | None = None) -> Swapped:
        """Brings all engines to the version of `changes`, or none. Raises `Dirty` where one serves nothing afterwards.

        After a failure the same version is not tried again at once, but ever later; until then the same error is raised.
        """
        target = changes.version
        if self._failure is not None and self._failure[0] == target and self._clock.monotonic_s() < self._not_before_s:
            raise self._failure[1]
        versions = self._versions()
        before = {seat: versions[seat] for seat in self._seats if seat.dirty or versions[seat] != target}
        reload = [seat for seat in before if self._unproven.get(seat) == target]
        attempt = Swap(before, reload, changes, self.settings, self._clock)
        try:
            done = attempt.run(canary)
        except WeightsyncError as error:
            self._failed(target, error, attempt)
            raise
        self._failure, self._failures = None, 0
        return done

    def sums(self) -> dict[str, Mapping[str, int]]:
        """The sums of the live parameters, by engine."""
        found, errors = each({seat: seat.engine.sums for seat in self._seats}, self.settings.prove_limit_s)
        for error in errors.values():
            raise error
        return {seat.name: sums for seat, sums in found.items()}

    def close(self) -> None:
        """Lets the engines go; they run on."""
        for seat in self._seats:
            seat.close()

    def _versions(self) -> dict[Seat, VersionRef | None]:
        found, errors = each({seat: seat.version for seat in self._seats}, self.settings.prove_limit_s)
        for error in errors.values():
            raise error
        return found

    def _failed(self, target: VersionRef, error: WeightsyncError, attempt: Swap) -> None:
        again = self._failure is not None and self._failure[0] == target
        self._failures = self._failures + 1 if again else 1
        self._failure = (target, error)
        self._not_before_s = self._clock.monotonic_s() + min(MAX_HOLD_S, 2.0 ** (self._failures - 1))
        self._unproven |= dict.fromkeys(attempt.unproven, target)
        self.suspects.extend(attempt.suspects)
