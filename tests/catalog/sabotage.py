"""The protocol with one rule taken out. The simulation must notice every one of them, or it proves nothing."""

from collections.abc import Callable

from weightsync.catalog import Catalog, Head
from weightsync.catalog.swap import Swap
from weightsync.errors import AlreadyExists, Conflict, OutcomeUnknown, WeightsyncError


class RefusalIsLoss(Swap):
    """412 is taken at its word, without reading back."""

    def _write(self) -> Head | WeightsyncError:
        outcome = super()._write()
        if isinstance(outcome, Conflict):
            raise outcome
        return outcome


class SilenceIsSuccess(Swap):
    """A lost reply is taken for success."""

    def _write(self) -> Head | WeightsyncError:
        outcome = super()._write()
        return self._won("") if isinstance(outcome, OutcomeUnknown) else outcome


class SilenceIsFailure(Swap):
    """A lost reply is taken for failure."""

    def _write(self) -> Head | WeightsyncError:
        outcome = super()._write()
        if isinstance(outcome, OutcomeUnknown):
            raise Conflict("lost")
        return outcome


class RetriedBlindly(Swap):
    """After any refusal the swap is repeated over whatever is there now."""

    def _judge(self, now: Head | None) -> Head | None:
        if now is not None and now.digest != self._envelope.digest:
            self._etag = now.etag
            return None
        return now


class OnlyTheHeadCounts(Swap):
    """Reading back looks at the head alone, not at the history that it reaches."""

    def _look_up(self, now: Head) -> Head:
        if now.digest == self._envelope.digest:
            return now
        raise self._lost(now.move, now.move)


def _swapping(kind: type[Swap]) -> Callable[[Catalog], None]:
    def change(catalog: Catalog) -> None:
        ctx, reader = catalog._ctx, catalog._reader
        catalog._writer.swap = lambda seen, move, envelope: kind(ctx, reader, seen, move, envelope).run()  # type: ignore[method-assign]

    return change


def _no_look_after(catalog: Catalog) -> None:
    catalog._mover._retractor.check = lambda *_: None  # type: ignore[method-assign]


def _numbers_are_overwritten(catalog: Catalog) -> None:
    """A number whose manifest is taken is used all the same."""
    catalog._committer._taken = lambda _number: False  # type: ignore[method-assign]
    create = catalog.store.create

    def overwrite(key: str, data: bytes) -> str:
        try:
            return create(key, data)
        except AlreadyExists:
            if not key.endswith("/manifest"):
                raise
            return catalog.store.put(key, data)

    catalog.store.create = overwrite  # type: ignore[method-assign,assignment]


def _claims_share_the_epoch(catalog: Catalog) -> None:
    """Claiming does not raise the epoch."""
    inner = catalog._writer.move

    def move(seen: Head | None, change: object) -> Head:
        from dataclasses import replace

        if seen is not None and getattr(change, "why", "") == "claim":
            change = replace(change, epoch=seen.move.epoch)  # type: ignore[type-var]
        return inner(seen, change)  # type: ignore[arg-type]

    catalog._writer.move = move  # type: ignore[method-assign]


RULES: dict[str, Callable[[Catalog], None]] = {
    "a refusal is read back": _swapping(RefusalIsLoss),
    "a lost reply is not success": _swapping(SilenceIsSuccess),
    "a lost reply is not failure": _swapping(SilenceIsFailure),
    "a lost swap is not repeated over another's": _swapping(RetriedBlindly),
    "the history decides, not the head": _swapping(OnlyTheHeadCounts),
    "writers look again after writing": _no_look_after,
    "a taken number is void": _numbers_are_overwritten,
    "a claim raises the epoch": _claims_share_the_epoch,
}
