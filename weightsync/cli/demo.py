"""`weightsync demo`: the whole loop on this machine, with real processes; or your own checkpoints through the store."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.options import verb
from weightsync.cli.signals import sigterm_interrupts
from weightsync.clock import SYSTEM
from weightsync.errors import Invalid

if TYPE_CHECKING:
    from weightsync.cli.demo_input import Checkpoint
    from weightsync.cli.demo_table import Row

STEPS = 6


@verb()
def demo(
    context: Context,
    *,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Steps to train (default: 220), or checkpoints after the first (all).")
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", metavar="DIR", help="Publish these instead of training: a directory or file per step."),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option("--lr", metavar="X", help="No loop: six steps at this learning rate, such as 1e-6, and how small they become."),
    ] = None,
    report: Annotated[Path, typer.Option("--report", metavar="FILE", help="Where the loop's report goes.")] = Path(".demo/report.html"),
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="Publish here, not to a temporary directory (WEIGHTSYNC_STORE is ignored).")
    ] = None,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="Name of the run there.")] = "demo",
    subscribers: Annotated[int, typer.Option("--subscribers", metavar="N", min=1, max=16, help="Subscriber processes.")] = 2,
) -> int:
    """Shows the whole loop on this machine.

    Trains a small policy by reinforcement: trainer and hub at home, a rollout worker in each of two regions behind long and narrow links,
    an S3 server between them. On the way one worker is killed and one region is cut off. Every swap of weights is proven before it serves.
    Ends with a report.

    With --checkpoints or --lr it publishes checkpoints instead, lets subscriber processes follow and rebuild, and compares every byte of
    their files. Ends with 1 if one differs.

    Examples:
      1. The loop, in some three minutes
           weightsync demo
      2. How small steps at a learning rate of full-size training become
           weightsync demo --lr 1e-6
      3. Your own checkpoints: DIR/step-1/model.safetensors, DIR/step-2/model.safetensors, ...
           weightsync demo --checkpoints DIR
      4. Over a bucket, with the results as JSON on the last line
           weightsync demo --checkpoints DIR --store s3://bucket/scratch --run demo --json
    """
    if checkpoints is None and lr is None:
        if store is not None:
            raise Invalid("the loop's demo brings its own store", remedy="use `weightsync rl run --store URL`")
        from weightsync.cli import demo_regions

        return demo_regions.show(context, steps or demo_regions.STEPS, report)
    from weightsync.cli.demo_loop import Loop, check_store
    from weightsync.cli.demo_table import LiveTable

    started_s = SYSTEM.monotonic_s()
    with ExitStack() as stack:
        stack.enter_context(sigterm_interrupts())
        home, images = (Path(stack.enter_context(_directory(place))) for place in (None, _memory()))
        source = _input(home, checkpoints, steps, lr or 1e-6)
        check_store(store or "")
        # Said once nothing is wrong with what was asked for.
        what = f"publishing what is in {checkpoints}" if checkpoints else "training a small model and publishing every step"
        context.out.note(f"{what}; {words.count(subscribers, 'subscriber process', 'es')} will rebuild each version ...")
        table = stack.enter_context(LiveTable(remark="input" if checkpoints else "reward", as_json=context.out.as_json))
        table.doing("preparing ...")
        here = context.with_settings(store=store or (home / "store").as_uri(), run=run, cache=home / "publisher")
        rows: list[Row] = []
        loop: Loop | None = None
        for checkpoint in source:
            # Not before there is something to publish: a wrong directory should not start processes.
            loop = loop or stack.enter_context(Loop(here, home, images, subscribers, table.doing))
            rows.append(loop.carry(checkpoint))
            table.add(rows[-1])
            table.doing("waiting for the next step ...")
    good = bool(rows) and all(row.good for row in rows)
    _summarise(context, rows, subscribers, SYSTEM.monotonic_s() - started_s, good=good)
    return 0 if good else 1


def _directory(place: Path | None) -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="weightsync-demo-", dir=place)


def _input(home: Path, checkpoints: Path | None, steps: int | None, lr: float) -> "Iterable[Checkpoint]":
    from weightsync.cli import demo_input

    if checkpoints is not None:
        return demo_input.given(checkpoints)[: steps and steps + 1]
    return demo_input.trained(home, steps or STEPS, lr)


def _memory() -> Path | None:
    """Where images of subscribers belong; None where this machine has no such place."""
    from weightsync.wiring import SHARED_MEMORY

    return SHARED_MEMORY if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK) else None


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
        out.line(
            f"{words.count(len(deltas), 'delta')}: {words.size(sent)} instead of {words.size(whole)}, {words.ratio(whole, sent)} smaller"
        )
    proof = "yes (every byte compared)" if good else "NO"
    out.line(f"{words.count(len(rows), 'version')}, {words.count(subscribers, 'subscriber process', 'es')}, bit-identical: {proof}")
    out.document(document)
