"""`weightsync top`: the status of a run, live."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import RUN, SERVER, STORE, TRUST, verb
from weightsync.cli.signals import stop_event
from weightsync.cli.status import Limit, observer
from weightsync.errors import Unavailable

if TYPE_CHECKING:
    from weightsync.telemetry.facts import RunFacts


@verb(STORE, RUN, TRUST, *SERVER)
def top(
    context: Context,
    *,
    interval_s: Annotated[float, typer.Option("--interval-s", metavar="S", min=0.1, help="Seconds between looks.")] = 2.0,
    count: Annotated[int, typer.Option("--count", metavar="N", min=0, help="End after N looks; 0: when it is stopped.")] = 0,
    limit: Limit = 20,
) -> None:
    """Shows what `status` shows, again and again, in the terminal.

    With --json, or where no terminal watches, each look is printed below the one before. A server or store that does not answer is
    waited for.

    Examples:
      1. Live
           weightsync top --server 127.0.0.1:7443 --run tuning
      2. A line of JSON every ten seconds
           weightsync top --server 127.0.0.1:7443 --run tuning --interval-s 10 --json
    """
    with observer(context, limit) as look, stop_event() as stop, _screen(context) as show:
        looks = 0
        while not stop.is_set():
            try:
                show(look())
            except Unavailable as error:
                context.out.note(f"waiting: {error}")
            looks += 1
            if looks == count:
                return
            stop.wait(interval_s)


@contextmanager
def _screen(context: Context) -> Iterator[Callable[["RunFacts"], None]]:
    """Where looks go: the whole terminal, or one after another."""
    from weightsync.cli.status_text import lines
    from weightsync.telemetry.alarms import alarms
    from weightsync.telemetry.facts import to_json

    limits = context.thresholds

    def write(facts: "RunFacts") -> None:
        raised = alarms(facts, limits)
        for line in (*lines(facts, raised), ""):
            context.out.line(line)
        context.out.document(to_json(facts, raised))
        sys.stdout.flush()

    if context.out.as_json or not sys.stdout.isatty():
        yield write
        return
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        yield lambda facts: live.update(
            Text("\n".join(lines(facts, alarms(facts, limits))), no_wrap=True, overflow="ellipsis"), refresh=True
        )
