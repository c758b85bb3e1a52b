"""`weightsync rl replay`: a training step done again from its record."""

from pathlib import Path
from typing import Annotated

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import verb
from weightsync.errors import NotFound


@verb()
def replay(
    context: Context,
    *,
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="A file `step-NNNNNNNN.safetensors` that the trainer keeps.")],
    checkpoints: Annotated[
        Path | None, typer.Option("--checkpoints", metavar="DIR", help="The trainer's checkpoints: the step is done again from there.")
    ] = None,
    dump: Annotated[bool, typer.Option("--dump", help="Print the groups too: tokens, versions, rewards, advantages.")] = False,
) -> int:
    """Does a training step again from its record.

    The record is read and written again, to the byte; advantages are computed from the rewards and the loss from
    the log-probabilities. With the checkpoint of the step before, the whole step runs again: every number must be equal.
    The exit code is 1 where something differs.

    Examples:
      1. What the record alone can show
           weightsync rl replay run/records/step-00000012.safetensors
      2. The whole step, weights included
           weightsync rl replay run/records/step-00000012.safetensors --checkpoints run/checkpoints
      3. All that is in it, for a script
           weightsync rl replay run/records/step-00000012.safetensors --dump --json
    """
    try:
        from weightsync.rl import checkpoint, show
        from weightsync.rl.replay import load
        from weightsync.rl.replay import replay as do_again
        from weightsync.rl.threads import use_one_thread
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    use_one_thread()
    step, _ = load(record)
    before, after = checkpoint.around(checkpoints, step.step) if checkpoints else (None, None)
    if checkpoints and before is None:
        raise NotFound(f"{checkpoints} holds no checkpoint of step {step.step - 1}", remedy="leave --checkpoints out, or keep more of them")
    checks = do_again(record, before, after)
    document = show.described(step, whole=dump) | {"checks": [{"what": one.what, "holds": one.holds, "found": one.found} for one in checks]}
    context.out.document(document)
    for line in show.lines(step, whole=dump):
        context.out.line(line)
    for one in checks:
        word = {True: "yes", False: "NO", None: "-"}[one.holds]
        context.out.line(f"{word:<4} {one.what}{': ' + one.found if one.found else ''}")
    return int(any(one.holds is False for one in checks))


def _missing(error: ModuleNotFoundError) -> Exception:
    from weightsync.errors import Unsupported

    return Unsupported(f"the loop needs {error.name}, which is not installed", remedy="pip install 'weightsync[rl]'")
