"""`weightsync rl work`: a rollout worker."""

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import CACHE, IMAGES, POLL, RUN, STORE, TRUST, verb
from weightsync.errors import Corrupt, Dirty, WeightsyncError

if TYPE_CHECKING:
    from weightsync.format.refs import VersionRef
    from weightsync.subscriber.follow import Step

ENGINE = "policy"


class Swaps:
    """Writes a line for every swap, those whose proof failed included: with `prove_before_resume` what was delivered was proven."""

    def __init__(self, journal: Path | None, region: str) -> None:
        from weightsync.rl.journal import Journal

        self._journal, self._region = Journal(journal) if journal else None, region
        self._told: WeightsyncError | None = None

    def done(self, step: "Step") -> None:
        """After a step of the subscriber."""
        if self._journal and step.delivered and step.version:
            fetched = step.update.bytes_fetched if step.update else 0
            self._journal.write(version=step.version.version, region=self._region, fetched_bytes=fetched, proven=True, **step.phases)

    def failed(self, error: WeightsyncError, held: "VersionRef | None", served: "VersionRef | None") -> None:
        """After a step that failed. Where the image has a version that the engine does not serve, the swap is what failed."""
        if not self._journal or not isinstance(error, Corrupt | Dirty) or held is None or held == served:
            return
        if error is not self._told:  # until it is tried again the same error is raised
            self._told = error
            self._journal.write(version=held.version, region=self._region, proven=False, why=error.kind)


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
        swaps = Swaps(journal, region)
        following = threading.Thread(
            target=subscriber.run,
            args=(stop,),
            kwargs={
                "interval_s": context.settings.poll_s,
                "on_step": swaps.done,
                "on_error": lambda error: swaps.failed(error, subscriber.version, subscriber.served),
            },
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
