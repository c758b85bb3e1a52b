"""`weightsync rl work`: a rollout worker."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import CACHE, IMAGES, POLL, RUN, STORE, TRUST, verb

if TYPE_CHECKING:
    from weightsync.subscriber.follow import Step

ENGINE = "policy"


def _teller(journal: Path | None, region: str) -> "Callable[[Step], None]":
    """What writes a line for every swap; each was proven before it was served."""
    from weightsync.rl.journal import Journal

    told = Journal(journal) if journal else None

    def swapped(step: "Step") -> None:
        if told and step.delivered and step.version:
            fetched = step.update.bytes_fetched if step.update else 0
            told.write(version=step.version.version, region=region, fetched_bytes=fetched, proven=True, **step.phases)

    return swapped


@verb(STORE, RUN, CACHE, IMAGES, TRUST, POLL)
def work(
    context: Context,
    *,
    settings: Annotated[Path | None, typer.Option("--settings", metavar="FILE", help="The run's TOML file.")] = None,
    hub: Annotated[str, typer.Option("--hub", metavar="HOST:PORT", help="Where the hub is.")] = "127.0.0.1:7500",
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Its own: one at a time under a name.")],
    region: Annotated[str, typer.Option("--region", metavar="NAME", help="Where it is.")] = "home",
    journal: Annotated[Path | None, typer.Option("--journal", metavar="FILE", help="Writes a line for every swap.")] = None,
) -> None:
    """Follows the trainer's versions, swaps them into its engine between two tokens, plays tasks and hands in groups.

    Examples:
      1. On a machine of another region
           weightsync rl work --store s3://bucket/models --run sort --hub 10.0.0.5:7500 --name eu-1 --region eu
    """
    import asyncio

    from weightsync.cli.rl_parts import needs_the_loop

    with needs_the_loop():
        from weightsync.engine.open import share
        from weightsync.engine.swap import SwapSettings
        from weightsync.rl.environments import open_environment
        from weightsync.rl.episode import Rules
        from weightsync.rl.policy import LocalPolicy
        from weightsync.rl.service import LoopClient
        from weightsync.rl.settings import read_settings
        from weightsync.rl.worker import Who, Worker, empty_engine

    read = read_settings(settings)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    decoder, gate, engine = empty_engine()
    share(ENGINE, engine)
    swap = SwapSettings(mode=read.mode, prove_before_resume=True)
    client = LoopClient(hub)
    with (
        context.subscriber(channel="latest", out=None, keep=1, engines=[f"memory://{ENGINE}"], swap=swap) as subscriber,
        LocalPolicy(decoder, gate, slots=256) as policy,
    ):
        following = threading.Thread(
            target=subscriber.run,
            args=(stop,),
            kwargs={"interval_s": context.settings.poll_s, "on_step": _teller(journal, region)},
            daemon=True,
        )
        following.start()
        rules = Rules(window=decoder.shape.context, patience_s=read.lease_s)
        worker = Worker(Who(name, region), client, policy, open_environment, rules=rules, environment_s=read.environment_s)
        try:
            asyncio.run(worker.run(stop.is_set))
        finally:
            stop.set()
            following.join()
    client.close()
