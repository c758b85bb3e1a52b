"""How results are shown: a table for people, one JSON document for scripts, a bar for who watches.

Standard output carries results only; everything else goes to standard error.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Row = Sequence[str]
Advance = Callable[[int, int], None]  # (done, total)


class Output:
    """Where a verb speaks. With `as_json` people's words go to standard error and scripts get JSON."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.to_log = False  # remarks go into the log: every line on standard error is JSON then

    def document(self, value: dict[str, Any]) -> None:
        """The one JSON document of a command; shown only with `--json`."""
        if self.as_json:
            print(json.dumps(value, ensure_ascii=False), flush=True)

    def event(self, name: str, line: str, **fields: Any) -> None:
        """Something a daemon did: a JSON line with `--json`, else `line`."""
        if self.as_json:
            print(json.dumps({"event": name, **fields}, ensure_ascii=False), flush=True)
        else:
            print(line, flush=True)

    def line(self, text: str = "") -> None:
        """A line of the result, for people; scripts get `document` instead."""
        if not self.as_json:
            print(text)

    def note(self, text: str) -> None:
        """A remark beside the result."""
        if self.to_log:
            logging.getLogger(__name__).info(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def table(self, columns: Sequence[str], rows: Sequence[Row], *, left: int = 1) -> None:
        """A table for people: the first `left` columns to the left, the others to the right. No colours, no borders: it survives a pipe."""
        if self.as_json:
            return
        for line in table_lines(columns, rows, left=left):
            print(line)

    @property
    def _watched(self) -> bool:
        return not self.as_json and sys.stderr.isatty()

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """A sign of life on standard error while the block runs, if a terminal watches."""
        if not self._watched:
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield

    @contextmanager
    def progress(self, what: str) -> Iterator[Advance]:
        """A bar on standard error while the block runs, if a terminal watches; the block calls what it gets with (done, total)."""
        if not self._watched:
            yield lambda _done, _total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)


def table_lines(columns: Sequence[str], rows: Sequence[Row], *, left: int = 1) -> list[str]:
    """The lines of a table, header first."""
    lines = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
