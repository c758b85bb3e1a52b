"""`weightsync rl hub`: hands tasks out and takes groups in."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import verb


@verb()
def hub(
    context: Context,
    *,
    settings: Annotated[Path | None, typer.Option("--settings", metavar="FILE", help="The run's TOML file.")] = None,
    listen: Annotated[str, typer.Option("--listen", metavar="HOST:PORT", help="Where; port 0 takes a free one.")] = "127.0.0.1:7500",
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plaintext beyond this host: a private network, a tunnel.")] = False,
) -> None:
    """Hands out tasks, takes groups in, and keeps the promise about policy lag.

    It keeps nothing: after a restart the trainer tells it what counts, and the workers what they work on.

    Examples:
      1. For workers on other machines of a private network
           weightsync rl hub --settings run.toml --listen 10.0.0.5:7500 --insecure
    """
    from weightsync.cli.rl_parts import needs_the_loop

    with needs_the_loop():
        from weightsync.rl.book import Book
        from weightsync.rl.service import LoopServer
        from weightsync.rl.settings import read_settings

    server = LoopServer(Book(read_settings(settings).work), listen=listen, insecure=insecure)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    address = server.start()
    context.out.event("listening", f"the hub listens on {address}", address=address)
    try:
        ended.wait()
    finally:
        server.stop()
