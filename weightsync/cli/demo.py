"""`weightsync demo`: the whole loop on this machine, with real processes."""

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.options import RUN, STORE, verb
from weightsync.cli.signals import sigterm_interrupts
from weightsync.clock import SYSTEM

if TYPE_CHECKING:
    from weightsync.cli.demo_input import Checkpoint
    from weightsync.cli.demo_table import Row


@verb(STORE, RUN)
def demo(
    context: Context,
    *,
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Training steps, or checkpoints after the first.")] = 6,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", metavar="DIR", help="Publish these instead of training: a directory or file per step."),
    ] = None,
    lr: Annotated[float, typer.Option("--lr", metavar="X", help="Learning rate of the policy gradient.")] = 1e-6,
    subscribers: Annotated[int, typer.Option("--subscribers", metavar="N", min=1, max=16, help="Subscriber processes.")] = 2,
) -> int:
    """Shows the whole loop on this machine.

    Trains a small transformer with a policy gradient (or takes your checkpoints), publishes every step to a store in a temporary directory,
    lets subscriber processes follow and rebuild, and compares every byte of their files with the trainer's. Ends with 1 if one differs.

    Examples:
      1. Train, publish, follow, compare
           weightsync demo
      2. Your own checkpoints: DIR/step-1/model.safetensors, DIR/step-2/model.safetensors, ...
           weightsync demo --checkpoints DIR
      3. Over a bucket, with the results as JSON on the last line
           weightsync demo --store s3://bucket/scratch --run demo --json
    """
    started_s = SYSTEM.monotonic_s()
    with ExitStack() as stack:
        stack.enter_context(sigterm_interrupts())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightsync-demo-")))
        rows = list(_run(stack, context, home, _input(home, checkpoints, steps, lr), subscribers))
    seconds = SYSTEM.monotonic_s() - started_s
    good = bool(rows) and all(row.good for row in rows)
    _summarise(context, rows, subscribers, seconds, good=good)
    return 0 if good else 1


def _input(home: Path, checkpoints: Path | None, steps: int, lr: float) -> "Iterable[Checkpoint]":
    from weightsync.cli import demo_input

    return demo_input.given(checkpoints)[: steps + 1] if checkpoints else demo_input.trained(home, steps, lr)


def _run(stack: ExitStack, context: Context, home: Path, source: "Iterable[Checkpoint]", subscribers: int) -> "Iterator[Row]":
    from weightsync.cli.demo_loop import Loop
    from weightsync.cli.demo_table import LiveTable

    table = stack.enter_context(LiveTable(as_json=context.out.as_json))
    table.doing("warming up ...")
    loop: Loop | None = None
    for checkpoint in source:
        # Not before there is something to publish: a wrong directory should not start processes.
        loop = loop or stack.enter_context(Loop(context, home, subscribers, table.doing))
        row = loop.carry(checkpoint)
        table.add(row)
        yield row
        table.doing("training ...")


def _summarise(context: Context, rows: "list[Row]", subscribers: int, seconds: float, *, good: bool) -> None:
    deltas = [row for row in rows if row.form == "delta"]
    sent, whole = sum(row.total_bytes for row in deltas), sum(row.checkpoint_bytes for row in deltas)
    document: dict[str, Any] = {
        "ok": good,
        "bit_identical": good,
        "subscribers": subscribers,
        "versions": [row.to_json() for row in rows],
        "delta_wire_bytes": sent,
        "delta_checkpoint_bytes": whole,
        "delta_ratio": whole / sent if sent else None,
        "seconds": seconds,
    }
    out = context.out
    out.line()
    if deltas:
        out.line(f"{len(deltas)} deltas: {words.size(sent)} instead of {words.size(whole)}, {words.ratio(whole, sent)} smaller")
    words_of_proof = "every byte compared" if good else "BYTES DIFFER"
    out.line(f"{len(rows)} versions to {subscribers} subscriber processes, bit-identical: {'yes' if good else 'NO'} ({words_of_proof})")
    out.document(document)
