"""`weightsync rl eval`: what a checkpoint is worth."""

from pathlib import Path
from typing import Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import verb
from weightsync.clock import SYSTEM


@verb()
def eval(  # noqa: A001  the name of the verb
    context: Context,
    *,
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A Hugging Face directory, or a trainer's checkpoint.")],
    environment: Annotated[str, typer.Option("--environment", metavar="NAME", help="As in tasks: sort, sort:8, arithmetic ...")] = "sort",
    problems: Annotated[int, typer.Option("--problems", metavar="N", min=1, help="How many problems, each played once.")] = 512,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 draws the likeliest tokens.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which problems.")] = 0,
    at_least: Annotated[float | None, typer.Option("--at-least", metavar="REWARD", help="Exit with 1 where the mean is lower.")] = None,
) -> int:
    """Plays problems that nobody trained on, and says what a checkpoint is worth.

    Failures of the infrastructure are counted apart and are no zeros.

    Examples:
      1. The mean reward of a restored version
           weightsync restore --store file:///data/store --run tuning --version 7 --out ./v7
           weightsync rl eval ./v7 --environment sort
      2. A gate before a promotion
           weightsync rl eval ./v7 --environment sort --at-least 0.9 && weightsync promote --run tuning --version 7
    """
    from weightsync.cli.rl_replay import _missing

    try:
        import asyncio

        from weightsync.engine.gate import Gate
        from weightsync.rl.environments import open_environment
        from weightsync.rl.episode import Rules
        from weightsync.rl.evaluate import evaluate, load_policy
        from weightsync.rl.policy import LocalPolicy
        from weightsync.rl.threads import use_one_thread
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    use_one_thread()
    decoder, played = load_policy(checkpoint), open_environment(environment)
    rules = Rules(window=decoder.shape.context, temperature=temperature)
    with LocalPolicy(decoder, Gate(1)) as policy, context.out.busy(f"playing {problems} problems"):
        found = asyncio.run(evaluate(policy, played, problems, clock=SYSTEM, rules=rules, seed=seed))
    document = {"checkpoint": str(checkpoint), "environment": environment, "temperature": temperature, "problems": problems, "seed": seed}
    context.out.document(document | {"reward": found.reward, "error": found.error, "outcomes": found.outcomes, "scores": found.scores})
    context.out.line(f"reward {found.reward:.3f} ± {found.error:.3f}   {environment}, {problems} problems, temperature {temperature:g}")
    for name, score in found.scores.items():
        context.out.line(f"  {name:<20} {score:.3f}")
    context.out.line("  " + ", ".join(f"{count} {name}" for name, count in found.outcomes.items()))
    failed = found.outcomes.get("graded", 0) == 0
    return int(failed or (at_least is not None and found.reward < at_least))
