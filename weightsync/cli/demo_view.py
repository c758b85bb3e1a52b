"""What the demo of the loop shows while it runs: a panel where a terminal watches, a line now and then elsewhere."""

import sys
from collections.abc import Mapping, Sequence
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from weightsync.cli import words

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

EVERY = 20  # steps between two lines
WINDOW = 20
BARS = "▁▂▃▄▅▆▇█"

Rows = Sequence[Mapping[str, Any]]


class View:
    """A context manager. On standard error with `as_json`."""

    def __init__(self, steps: int, *, as_json: bool) -> None:
        self._steps = steps
        self._stream = sys.stderr if as_json else sys.stdout
        self._live: Live | None = None
        self._last = 0
        self._events: list[str] = []

    def __enter__(self) -> Self:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(file=self._stream), refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def update(self, rows: Rows, swaps: Rows, status: Any, happened: str) -> None:
        """As it stands. `status` is the hub's, None before it answered; `happened` is news."""
        if happened:
            self._events.append(happened)
        if self._live:
            self._live.update(self._panel(rows, swaps, status))
            return
        if happened:
            print(f"    -- {happened}", file=self._stream, flush=True)
        if rows and rows[-1]["step"] >= self._last + EVERY:
            self._last = rows[-1]["step"]
            print(_line(rows, swaps, status), file=self._stream, flush=True)

    def _panel(self, rows: Rows, swaps: Rows, status: Any) -> "Table":
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column()
        step = rows[-1]["step"] if rows else 0
        table.add_row("step", f"{step} of {self._steps}")
        table.add_row("reward", f"{_reward(rows):.3f}  {_curve(rows)}" if rows else "warming up ...")
        if rows:
            sent, full = sum(row["sent_bytes"] for row in rows), sum(row["full_bytes"] for row in rows)
            table.add_row("bytes", f"{words.size(sent)} published, full checkpoints {words.size(full)}")
        if swaps:
            proven = sum(bool(one.get("proven")) for one in swaps)
            pause_s = median([one["pause"] for one in swaps if "pause" in one] or [0.0])  # a swap that failed has none
            table.add_row("swaps", f"{proven} of {len(swaps)} proven; pause {1e3 * pause_s:.1f} ms")
        if status is not None:
            table.add_row("queue", f"{status.queued} groups wait, {status.leased} are being made, {status.stale} came too late")
            for region in status.regions:
                table.add_row(f"lag {region.region}", f"at most {region.lag_max_versions} versions, {region.lag_max_s:.1f} s")
            for one in status.workers:
                idle = f"idle {one.metrics['idle']:.0%}" if "idle" in one.metrics else ""
                table.add_row(one.worker, f"version {one.version}, {one.working_on} tasks, heard {one.silent_s:.1f} s ago, {idle}")
        for event in self._events[-3:]:
            table.add_row("", f"[yellow]{event}")
        return table


def _line(rows: Rows, swaps: Rows, status: Any) -> str:
    lag = max((region.lag_max_versions for region in status.regions), default=0) if status is not None else 0
    sent, full = sum(row["sent_bytes"] for row in rows), sum(row["full_bytes"] for row in rows)
    pause = 1e3 * median(one.get("pause", 0.0) for one in swaps) if swaps else 0.0
    return (
        f"step {rows[-1]['step']:>4}  reward {_reward(rows):.3f}  lag {lag}  {len(swaps):>4} swaps  pause {pause:.1f} ms  "
        f"{words.size(sent)} for {words.size(full)}"
    )


def _reward(rows: Rows) -> float:
    last = rows[-WINDOW:]
    return float(sum(row["metrics"].get("reward", 0.0) for row in last) / len(last))


def _curve(rows: Rows) -> str:
    rewards = [row["metrics"].get("reward", 0.0) for row in rows]
    size = max(1, len(rewards) // 40)
    means = [sum(rewards[at : at + size]) / len(rewards[at : at + size]) for at in range(0, len(rewards), size)]
    return "".join(BARS[min(len(BARS) - 1, int(max(0.0, one) * len(BARS)))] for one in means)
