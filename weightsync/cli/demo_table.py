"""The demo's table: it grows while a terminal watches, and is plain lines elsewhere."""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from weightsync.cli import words

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

COLUMNS = ("version", "form", "changed", "wire", "ratio", "publish", "rebuild", "{}", "bit-identical")
WIDTHS = (7, 8, 8, 7, 5, 7, 7, 10, 13)  # 80 columns hold them


class Row(NamedTuple):
    """One version. `rebuild_s` is the slowest subscriber's, `identical` how many subscribers' files were the trainer's."""

    version: int
    step: int | None
    form: str
    changed_lanes: int
    lanes: int
    total_bytes: int
    checkpoint_bytes: int
    publish_s: float
    rebuild_s: float
    subscribers: int
    identical: int
    remark: str

    @property
    def good(self) -> bool:
        """Whether every subscriber has the trainer's bytes."""
        return self.identical == self.subscribers

    def cells(self) -> tuple[str, ...]:
        """As people read it."""
        return (
            str(self.version),
            self.form,
            words.percent(self.changed_lanes, self.lanes),
            words.size(self.total_bytes),
            words.ratio(self.checkpoint_bytes, self.total_bytes),
            words.seconds(self.publish_s),
            words.seconds(self.rebuild_s),
            self.remark,
            "yes" if self.good else f"NO ({self.identical} of {self.subscribers})",
        )

    def to_json(self) -> dict[str, Any]:
        """As `--json` shows it."""
        return {
            "version": self.version,
            "step": self.step,
            "form": self.form,
            "changed": self.changed_lanes / max(1, self.lanes),
            "wire_bytes": self.total_bytes,
            "checkpoint_bytes": self.checkpoint_bytes,
            "ratio": self.checkpoint_bytes / max(1, self.total_bytes),
            "publish_s": self.publish_s,
            "rebuild_s": self.rebuild_s,
            "bit_identical": self.good,
        }


class LiveTable:
    """Shows rows as they come and what is going on meanwhile; a context manager. On standard error with `as_json`."""

    def __init__(self, *, remark: str, as_json: bool) -> None:
        """`remark` names the column of remarks."""
        self._columns = tuple(name.format(remark) for name in COLUMNS)
        self._stream = sys.stderr if as_json else sys.stdout
        self._rows: list[Sequence[str]] = []
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self.doing("")
            self._live.stop()

    def doing(self, what: str) -> None:
        """What happens now; only a terminal shows it."""
        if self._live:
            from rich.console import Group
            from rich.text import Text

            self._live.update(Group(self._table(), Text(what, style="dim")) if what else self._table())

    def add(self, row: Row) -> None:
        """Shows a row."""
        self._rows.append(row.cells())
        if self._live:
            self._live.update(self._table())
            return
        if len(self._rows) == 1:
            print(_plain(self._columns), file=self._stream)
        print(_plain(row.cells()), file=self._stream, flush=True)

    def _table(self) -> "Table":
        from rich.table import Table

        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
        for name in self._columns:
            table.add_column(name, justify="right", no_wrap=True)
        for cells in self._rows:
            good = cells[-1] == "yes"
            table.add_row(*cells[:-1], f"[green]{cells[-1]}" if good else f"[bold red]{cells[-1]}")
        return table


def _plain(cells: Sequence[str]) -> str:
    """A line of fixed widths: later rows are not known yet."""
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))
