"""`weightsync rl run`: a whole loop on this machine, each part a process."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import RUN, STORE, verb
from weightsync.cli.signals import sigterm_interrupts
from weightsync.clock import SYSTEM

POLL_S = 0.5


@verb(STORE, RUN)
def run(
    context: Context,
    *,
    settings: Annotated[
        Path | None, typer.Option("--settings", metavar="FILE", help="The run's TOML file; default: sorting digits.")
    ] = None,
    home: Annotated[Path, typer.Option("--home", metavar="DIR", help="Checkpoints, records, journals and logs of all parts.")],
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", min=1, help="Instead of the file's.")] = None,
) -> int:
    """Runs hub, trainer and workers as processes of this machine until all steps are done.

    What dies is started again, and goes on where it was. The parts can as well be started by hand, on other machines: `rl hub`, `rl train`
    and `rl work`. Nothing waits for a rendezvous.

    Examples:
      1. Sort digits
           weightsync rl run --store file:///data/store --run sort --home ./sort
    """
    from weightsync.cli.rl_parts import needs_the_loop

    with needs_the_loop():
        from weightsync.rl.environments import open_environment
        from weightsync.rl.losses import loss_named
        from weightsync.rl.run import Loop
        from weightsync.rl.settings import read_settings

    read = read_settings(settings)
    loss_named(read.loss)  # a name that means nothing is told here, and not by a trainer that is started again and again
    open_environment(read.environment)
    with sigterm_interrupts(), Loop(read, context.store_url, context.run, home, steps=steps) as loop:
        last = 0
        while loop.tend():
            SYSTEM.sleep_s(POLL_S)
            for row in loop.new_steps():
                last = row["step"]
                reward = row["metrics"].get("reward", 0.0)
                context.out.event("step", f"step {last}: version {row['version']}, reward {reward:.3f}", **_facts(row))
        if not loop.well:
            sys.stderr.write(loop.last_words())
            return 1
        found = loop.summary()
    context.out.document(found)
    context.out.line(
        f"{found['steps']} steps, reward {found['reward_start']:.3f} -> {found['reward_end']:.3f}; "
        f"{found['swaps_proven']} of {found['swaps']} swaps proven; lag at most {found['lag_max_versions']} versions"
    )
    return 0


def _facts(row: dict[str, Any]) -> dict[str, Any]:
    return {"step": row["step"], "version": row["version"], "reward": row["metrics"].get("reward", 0.0)}
