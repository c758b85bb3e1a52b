"""The rules of collection, each taken out. The simulation must notice every one of them, or it proves nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from weightsync.catalog import Catalog
from weightsync.format.operators import Boundary
from weightsync.retention import plan, survey
from weightsync.retention.collect import Collector


@dataclass(frozen=True)
class Rule:
    """How to break it: another collector, a changed catalog, or a function replaced."""

    collector: type[Collector] = Collector
    catalog: Callable[[Catalog], None] | None = None
    replaced: tuple[Any, str, Any] | None = None

    @contextmanager
    def patched(self) -> Iterator[None]:
        if self.replaced is None:
            yield
            return
        with patch.object(*self.replaced):
            yield


class NeverLooksAgain(Collector):
    """What was needed at the first look is all that is needed."""

    def _look_again(self, run: Any) -> Any:
        return run


class Unmarked(Collector):
    """Condemns without having marked: writers get no warning."""

    def _mark(self, run: Any, before: Boundary) -> None:
        del before
        run.etag = run.etag or None


class Overwriting(Collector):
    """Deletes by its own idea of the boundary, whoever has changed it meanwhile."""

    def _condemn(self, run: Any, after: Boundary) -> None:
        try:
            super()._condemn(run, after)
        except Exception:  # noqa: BLE001  that is the sabotage
            _, etag = self._catalog.boundary()
            self._catalog.swap_boundary(after, etag)


_condemned = plan.condemned
_unwanted = plan.unwanted


def _holds_nothing(*args: Any, **options: Any) -> Any:
    sentence = _condemned(*args, **options)
    return replace(sentence, boundary=replace(sentence.boundary, held=()))


def _pins_do_not_count(catalog: Catalog) -> None:
    catalog.pins = lambda known=(): []  # type: ignore[method-assign]


def _leases_do_not_count(catalog: Catalog) -> None:
    catalog.leases = list  # type: ignore[method-assign,assignment]


def _no_look_after_moves(catalog: Catalog) -> None:
    catalog._mover._retractor.check = lambda *_: None  # type: ignore[method-assign]


RULES: dict[str, Rule] = {
    "needs are read again before condemning": Rule(collector=NeverLooksAgain),
    "marks come before condemning": Rule(collector=Unmarked),
    "what chains need is held": Rule(replaced=(plan, "condemned", _holds_nothing)),
    "only fenced publishers leave leftovers": Rule(replaced=(survey, "_is_past", lambda writer, epoch: True)),
    "a boundary is never overwritten": Rule(collector=Overwriting),
    "pins count": Rule(catalog=_pins_do_not_count),
    "leases count": Rule(catalog=_leases_do_not_count),
    "who moves looks again": Rule(catalog=_no_look_after_moves),
}
