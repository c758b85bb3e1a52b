"""One attempt to bring several engines to a version: stage all, then apply all, then prove; all end on the new version or on the old one.

    stage      a failure anywhere: nothing was touched, the error is raised
    apply      fails cleanly somewhere: those that had it go back     leaves an engine in doubt: it is withdrawn and reloaded from the image
    prove      sums (and canary) differ: withdrawn, its tokens since then are suspect, and all go back: by the inverse change, else by
               reloading the old version, to which the replica steps back; what cannot heal stays withdrawn

An engine whose version is not known has nothing to go back to: it is reloaded from the image, and where that fails it serves nothing.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from weightsync.clock import Clock
from weightsync.engine.api import Applied, Change, Mode
from weightsync.engine.changes import Changes
from weightsync.engine.proof import Canary, Speaking, check_sums
from weightsync.engine.seat import Seat, each
from weightsync.errors import Corrupt, Dirty, WeightsyncError
from weightsync.format.refs import VersionRef

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SwapSettings:
    """How.

    `prove_before_resume`: the pause lasts until the adapter finds all sums right. They are asked for from outside in any case, while it
    serves, and must be there within `prove_limit_s`.

    `pause_limit_s` bounds every pause in which changed lanes are written, `reload_limit_s` one in which everything is; an adapter that
    is `grace_s` late counts as hanging.
    """

    mode: Mode = Mode.KEEP
    pause_limit_s: float = 30.0
    prove_before_resume: bool = False
    prove_limit_s: float = 60.0
    stage_limit_s: float = 600.0
    reload_limit_s: float = 600.0
    grace_s: float = 10.0


class Suspect(NamedTuple):
    """Tokens labelled `version` that `engine` made between two moments (UNIX time) may come from other weights: do not train on them."""

    engine: str
    version: VersionRef
    since_s: float
    until_s: float


@dataclass(frozen=True)
class Swapped:
    """What a swap did, by engine. Seconds are those of the slowest engine; `unseen` are tensors that no proof covers."""

    version: VersionRef
    engines: Mapping[str, Applied]
    stage_s: float = 0.0
    pause_s: float = 0.0
    verify_s: float = 0.0
    reloaded: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


class Swap:
    """`before`: what each engine serves. `reload`: engines that are to be reloaded from the image, whatever they serve. Run once."""

    def __init__(
        self, before: Mapping[Seat, VersionRef | None], reload: Iterable[Seat], changes: Changes, settings: SwapSettings, clock: Clock
    ) -> None:
        self._before, self._changes, self._settings, self._clock = before, changes, settings, clock
        self._reload = {seat for seat in before if seat in set(reload) or seat.dirty or before[seat] is None}
        self._done: dict[Seat, Applied] = {}
        self._resumed_s = clock.now_s()
        self.unproven: set[Seat] = set()  # whose proof failed
        self.suspects: list[Suspect] = []

    def run(self, canary: Canary | None = None) -> Swapped:
        """Raises what went wrong first; `Dirty` where an engine serves nothing afterwards."""
        times = [self._clock.monotonic_s()]
        staged = self._stage()
        times.append(self._clock.monotonic_s())
        self._apply(staged)
        self._reload_all()
        times.append(self._clock.monotonic_s())
        unseen = self._prove(canary)
        times.append(self._clock.monotonic_s())
        self._admit(self._done)
        return Swapped(
            self._changes.version,
            {seat.name: self._done[seat] for seat in self._before},
            stage_s=times[1] - times[0],
            pause_s=max((applied.pause_s for applied in self._done.values()), default=0.0),
            verify_s=times[3] - times[2],
            reloaded=tuple(seat.name for seat in self._before if seat in self._reload),
            unseen=unseen,
        )

    def _stage(self) -> dict[Seat, Callable[[], Applied]]:
        settings, calls = self._settings, {}
        for seat in self._before:
            if seat not in self._reload:
                calls[seat] = partial(seat.engine.stage, self._changes.to(self._before[seat]))
        staged, errors = each(calls, settings.stage_limit_s)
        if errors:
            each({seat: one.discard for seat, one in staged.items()}, settings.grace_s)
            self._withdraw_dirty(errors)
            raise next(iter(errors.values()))
        limit_s, prove = settings.pause_limit_s, settings.prove_before_resume
        return {seat: partial(one.apply, settings.mode, limit_s=limit_s, prove=prove) for seat, one in staged.items()}

    def _apply(self, staged: Mapping[Seat, Callable[[], Applied]]) -> None:
        self._resumed_s = self._clock.now_s()
        self._done, errors = each(staged, self._settings.pause_limit_s + self._settings.grace_s)
        if not errors:
            return
        self._withdraw_dirty(errors)
        dirty = {seat for seat, error in errors.items() if isinstance(error, Dirty)}
        if self._settings.prove_before_resume:
            self.unproven |= {seat for seat, error in errors.items() if isinstance(error, Corrupt)}
        if len(dirty) < len(errors):
            clean = {seat: error for seat, error in errors.items() if seat not in dirty}
            self._retreat(self._done, dirty, next(iter(clean.values())), stayed=clean)
        self._reload |= dirty

    def _reload_all(self) -> None:
        if not self._reload:
            return
        limit_s = self._settings.reload_limit_s
        whole = self._changes.to(None)
        found, errors = each(
            {seat: partial(seat.engine.reload, whole, limit_s=limit_s) for seat in self._reload}, limit_s + self._settings.grace_s
        )
        self._done |= found
        if errors:
            for seat, error in errors.items():
                seat.withdraw(error.message, self._settings.grace_s)
            self._retreat(self._done, set(errors), next(iter(errors.values())))

    def _prove(self, canary: Canary | None) -> tuple[str, ...]:
        # Also what was proven in the pause: that was the adapter's word, and this is ours.
        seats = list(self._done)
        unseen, errors = self._check(seats, self._changes.to(None if not seats else self._base_of(seats[0])), canary)
        if errors:
            self.unproven |= set(errors)
            for seat, error in errors.items():
                seat.withdraw(error.message, self._settings.grace_s)
                self.suspects.append(suspect := Suspect(seat.name, self._changes.version, self._resumed_s, self._clock.now_s()))
                _log.error("tokens of other weights may be labelled version %d: %s", self._changes.version.version, suspect)
            dirty = {seat for seat in errors if seat in self._reload or seat.hangs}
            self._retreat({seat: one for seat, one in self._done.items() if seat not in dirty}, dirty, next(iter(errors.values())))
        return unseen

    def _base_of(self, seat: Seat) -> VersionRef | None:
        return None if seat in self._reload else self._before[seat]

    def _check(self, seats: Iterable[Seat], change: Change, canary: Canary | None) -> tuple[tuple[str, ...], dict[Seat, WeightsyncError]]:
        def look(seat: Seat) -> tuple[str, ...]:
            unseen = check_sums(change.layout, change.sums, seat.engine.sums(), change.version)
            if canary is not None and isinstance(seat.engine, Speaking):
                canary.check(seat.engine.logprobs(canary.tokens), change.version)
            return unseen

        found, errors = each({seat: partial(look, seat) for seat in seats}, self._settings.prove_limit_s)
        return tuple(sorted({name for names in found.values() for name in names})), errors

    def _retreat(
        self, there: Iterable[Seat], dirty: set[Seat], why: WeightsyncError, stayed: Mapping[Seat, WeightsyncError] | None = None
    ) -> None:
        """Brings all back to what they served before; raises `why`, or `Dirty` where one of them serves nothing.

        `stayed`: those that failed and say that they serve the old version: that is looked at, too.
        """
        _log.warning("version %d is given up: %s", self._changes.version.version, why)
        lost = set(dirty)
        backs: dict[Seat, Callable[[], Applied]] = {}
        for seat in there:
            before = self._before[seat]
            if before is None:
                lost |= {seat} if seat.dirty else set()  # else it stays: it is proven, and has nothing to go back to
            elif seat in self._reload or self._changes.to(before).base is None:
                lost.add(seat)
            else:
                backs[seat] = partial(self._undo, seat, self._changes.back(before))
        undone, errors = each(backs, self._settings.stage_limit_s + self._settings.pause_limit_s)
        old, wrong = self._look_at_old({*undone, *(stayed or {})})
        for seat, error in {**errors, **wrong}.items():
            seat.withdraw(error.message, self._settings.grace_s)
        healed = {*old, *self._restore(lost | set(errors) | set(wrong))}
        self._admit(healed)
        ill = [seat for seat in self._before if seat.dirty]
        if ill:
            names = ", ".join(seat.name for seat in ill)
            raise Dirty(f"{names} cannot be healed and serves nothing, after: {why.message}", remedy="restart it") from why
        raise why

    def _look_at_old(self, seats: set[Seat]) -> tuple[set[Seat], dict[Seat, WeightsyncError]]:
        """Which of `seats` have what they served before, and which do not; where its sums are not known, their word counts."""
        old: set[Seat] = set()
        wrong: dict[Seat, WeightsyncError] = {}
        for version in {self._before[seat] for seat in seats}:
            alike = {seat for seat in seats if self._before[seat] == version}
            if version is not None and self._changes.to(version).base is not None:
                _, errors = self._check(alike, self._changes.back(version), None)
                wrong |= errors
            old |= alike - set(wrong)
        self.suspects += [
            Suspect(seat.name, before, self._resumed_s, self._clock.now_s()) for seat in wrong if (before := self._before[seat])
        ]
        return old, wrong

    def _undo(self, seat: Seat, change: Change) -> Applied:
        return seat.engine.stage(change).apply(self._settings.mode, limit_s=self._settings.pause_limit_s, prove=True)

    def _restore(self, lost: set[Seat]) -> set[Seat]:
        """Reloads the old version, from the image that steps back to it; those that are proven to have it then."""
        healed: set[Seat] = set()
        limit_s = self._settings.reload_limit_s
        for version in {found for seat in lost if (found := self._before[seat]) is not None and not seat.hangs}:
            seats = [seat for seat in lost if self._before[seat] == version and not seat.hangs]
            try:
                whole = self._changes.instead(version)
            except WeightsyncError as error:
                _log.warning("version %d cannot be had again: %s", version.version, error)
                continue
            calls = {seat: partial(seat.engine.reload, whole, limit_s=limit_s) for seat in seats}
            loaded, errors = each(calls, limit_s + self._settings.grace_s)
            _, wrong = self._check(loaded, whole, None)
            for seat, failure in {**errors, **wrong}.items():
                seat.withdraw(failure.message, self._settings.grace_s)
            healed |= set(loaded) - set(wrong)
        for seat in lost - healed:
            seat.dirty = seat.dirty or "its weights are in doubt"
        return healed

    def _admit(self, seats: Iterable[Seat]) -> None:
        ill = [seat for seat in seats if seat.dirty or seat in self._reload]
        admitted, errors = each({seat: seat.engine.admit for seat in ill}, self._settings.grace_s)
        for seat in admitted:
            seat.dirty = ""
        for seat, error in errors.items():
            _log.error("engine %s stays withdrawn: %s", seat.name, error)

    def _withdraw_dirty(self, errors: Mapping[Seat, WeightsyncError]) -> None:
        for seat, error in errors.items():
            if isinstance(error, Dirty):
                seat.withdraw(error.message, self._settings.grace_s)
