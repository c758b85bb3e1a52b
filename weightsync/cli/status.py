"""`weightsync status`: how a run and its fleet are, now."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import RUN, SERVER, STORE, TRUST, verb
from weightsync.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from weightsync.telemetry.facts import RunFacts

Look = Callable[[], "RunFacts"]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="Look at the newest N versions.")]
Check = Annotated[bool, typer.Option("--check", help="Exit with 1 while an alarm is raised.")]


@verb(STORE, RUN, TRUST, *SERVER)
def status(context: Context, *, limit: Limit = 20, check: Check = False) -> int:
    """Shows channels, versions, subscribers and alarms.

    From a control plane (--server), or, without one, from the store alone, which knows nothing of subscribers. BEHIND is how far a
    subscriber is behind the channel that it follows.

    Examples:
      1. A run and its fleet
           weightsync status --server 127.0.0.1:7443 --run tuning
      2. Without a control plane
           weightsync status --store s3://bucket/models --run tuning
      3. In a check, every minute
           weightsync status --server 127.0.0.1:7443 --run tuning --check --json
    """
    from weightsync.cli.status_text import lines
    from weightsync.telemetry.alarms import alarms
    from weightsync.telemetry.facts import to_json

    with observer(context, limit) as look:
        facts = look()
    raised = alarms(facts, context.thresholds)
    for line in lines(facts, raised):
        context.out.line(line)
    context.out.document(to_json(facts, raised))
    return 1 if check and raised else 0


@contextmanager
def observer(context: Context, limit: int) -> Iterator[Look]:
    """What looks at the run: through the server if one is named, else in the store."""
    if context.settings.server is None:
        if context.settings.store is None:
            raise Invalid("neither a server nor a store was named", remedy="give --server HOST:PORT or --store URL")
        from weightsync.daemon.observe import StoreObserver

        yield StoreObserver(context.catalog, versions=limit).look
        return
    try:
        from weightsync.daemon.observe_server import ServerObserver
        from weightsync.daemon.plane import connect
    except ModuleNotFoundError as error:
        raise Unsupported(f"asking a server needs {error.name}", remedy="pip install 'weightsync[control]', or give --store only") from None
    with connect(context.settings) as client:
        yield ServerObserver(client, context.run, versions=limit).look
