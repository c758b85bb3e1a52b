"""How results are shown: a table for people, one JSON document for scripts, a bar for who watches, a line now and then for who reads later.

Standard output carries results only; everything else goes to standard error.
"""

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from weightsync.cli import words
from weightsync.clock import SYSTEM

Row = Sequence[str]
Advance = Callable[[int, int], None]  # (done, total)

LINE_S = 5.0


class Output:
    """Where a verb speaks. With `as_json` people's words go to standard error and scripts get JSON.

    `line_s`: seconds between the lines that tell of long work where no terminal watches.
    """

    def __init__(self, *, as_json: bool, line_s: float = LINE_S) -> None:
        self.as_json = as_json
        self._line_s = line_s
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

    def finishing(self, what: str) -> None:
        """Says that an end waits for `what`. For signal handlers: it does not touch the stream that they may have interrupted."""
        if self.to_log:
            return
        with suppress(OSError):
            os.write(sys.stderr.fileno(), f"finishing {what}, press Ctrl-C again to stop now\n".encode())

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
        """A sign of life on standard error while the block runs: a spinner on a terminal, elsewhere now and then a line."""
        if not self._watched:
            with self._lines(what):
                yield
            return
        from rich.console import Console

        with Console(stderr=True).status(what):
            yield

    @contextmanager
    def progress(self, what: str) -> Iterator[Advance]:
        """A bar on standard error while the block runs, elsewhere now and then a line; the block calls what it gets with (done, total)."""
        if not self._watched:
            with self._lines(what) as advance:
                yield advance
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    @contextmanager
    def _lines(self, what: str) -> Iterator[Advance]:
        """A line every `line_s` seconds while the block runs, from a thread: also while nothing advances. None for scripts and logs."""
        now = [0, 0]

        def advance(done: int, total: int) -> None:
            now[:] = done, total

        if self.as_json or self.to_log:
            yield advance
            return
        over, began_s = threading.Event(), SYSTEM.monotonic_s()

        def tell() -> None:
            while not over.wait(self._line_s):
                done, total = now
                share = f"{words.percent(done, total)} of {words.size(total)}, " if total else ""
                self.note(f"{what}: {share}{words.seconds(SYSTEM.monotonic_s() - began_s)}")

        teller = threading.Thread(target=tell, name="progress", daemon=True)
        teller.start()
        try:
            yield advance
        finally:
            over.set()
            teller.join()


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
