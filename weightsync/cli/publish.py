"""`weightsync publish`: the trainer's side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli import words
from weightsync.cli.channels import Who, me
from weightsync.cli.context import Context
from weightsync.cli.options import CACHE, KEY, LOG_FORMAT, METRICS, POLL, RUN, SERVER, STORE, TRUST, verb
from weightsync.errors import Invalid, NotFound, WeightsyncError

if TYPE_CHECKING:
    from weightsync.publisher.publisher import Publisher
    from weightsync.publisher.result import Published


@verb(STORE, RUN, CACHE, TRUST, KEY, POLL, *SERVER, METRICS, LOG_FORMAT)
def publish(
    context: Context,
    *,
    checkpoint: Annotated[
        Path | None, typer.Argument(metavar="CKPT", help="A Hugging Face directory or one safetensors file; index and config are optional.")
    ] = None,
    watch: Annotated[
        Path | None,
        typer.Option("--watch", metavar="DIR", help="Publish every checkpoint that appears in DIR, until stopped. [WEIGHTSYNC_WATCH]"),
    ] = None,
    step: Annotated[
        int | None, typer.Option("--step", metavar="N", min=0, help="Training step; default: the last number in the checkpoint's name.")
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="A remark to keep with the version.")] = "",
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="Name of the model, for a new run.")] = "",
    replace_model: Annotated[
        bool, typer.Option("--replace-model", help="Take a checkpoint that shares no tensor name with the run's: another model.")
    ] = False,
    who: Who = None,
    parent: Annotated[
        int | None, typer.Option("--parent", metavar="N", min=1, help="The version that it grows from; default: the newest, or --base.")
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option("--base", metavar="DIR", help="A checkpoint on this host that may be a published version: it saves a download."),
    ] = None,
    single_writer: Annotated[
        bool, typer.Option("--single-writer", help="For stores without conditional writes: you vouch that nobody else publishes.")
    ] = False,
) -> None:
    """Publishes a checkpoint as the next version.

    Prints the version's number. What is sent is the difference to the version before; the first version, and one with other
    tensors, is a snapshot. The base for the difference is kept in --cache and used only if it is the committed version, else it
    is rebuilt from the store. A checkpoint that shares no tensor name with the run's is refused: it is another model's.

    With --server the control plane is given notice of it; that may fail.

    Examples:
      1. One checkpoint
           weightsync publish ./step-100 --store s3://bucket/models --run tuning
      2. Whatever a trainer writes into a directory, until it is stopped
           weightsync publish --watch ./checkpoints --store s3://bucket/models --run tuning
      3. From a script
           weightsync publish ./step-100 --store file:///data/store --run tuning --json
      4. As a service
           weightsync publish --watch ./checkpoints --server cp:7443 --metrics 9100 --log-format json --json
      5. After training went back to step 100, on a new machine: go on from its version, with nothing to download
           weightsync publish ./step-101 --base ./step-100 --store s3://bucket/models --run tuning
    """
    if watch is None and checkpoint is None:
        watch = context.settings.watch
    if (checkpoint is None) == (watch is None):
        raise Invalid("give a checkpoint or --watch DIR, one of them", remedy="weightsync publish CKPT, or weightsync publish --watch DIR")
    if watch is not None and (parent is not None or base is not None):
        raise Invalid("--parent and --base are for one checkpoint, --watch takes many", remedy="publish the first one on its own")
    if watch is not None and step is not None:
        raise Invalid("--step names one checkpoint, --watch takes many", remedy="leave --step out: steps come from the names")
    if watch is not None:
        from weightsync.cli.publish_watch import run

        run(context, watch, note=note, who=who or me(), model=model, single_writer=single_writer, replace_model=replace_model)
    elif checkpoint is not None:
        from weightsync.publisher.watch import step_of

        new_run = is_new(context)
        with context.publisher(who=who or me(), model=model, single_writer=single_writer, replace_model=replace_model) as publisher:
            _go_back(context, publisher, parent, base)
            with context.out.busy(f"publishing {checkpoint}"):
                published = publisher.publish_checkpoint(checkpoint, step=step_of(checkpoint) if step is None else step, note=note)
            report(context, published, new_run=new_run)
            _notify(context)
            with context.out.busy("folding"):
                publisher.settle()


def is_new(context: Context) -> bool:
    """Whether publishing makes the run. Says so: its name may be mistyped."""
    try:
        context.catalog.run()
    except NotFound:
        context.out.note(f"run {context.run!r} is new in {context.store.url}")
        return True
    return False


def _go_back(context: Context, publisher: "Publisher", parent: int | None, base: Path | None) -> None:
    if parent is not None:
        publisher.fork(parent)
    if base is None:
        return
    with context.out.busy(f"comparing {base} with what was published"):
        found = publisher.adopt(base)
    context.out.note(f"{base} is version {found}" if found else f"note: {base} is not {parent or 'any version that was published'}")


def _notify(context: Context) -> None:
    """A hint: whoever polls finds the version as well."""
    plane = context.plane()
    if plane is None:
        return
    try:
        plane.notify(context.run, "latest")
    except WeightsyncError as error:
        context.out.note(f"note: the control plane was not given notice: {error}")
    finally:
        plane.close()


def report(context: Context, published: "Published", *, new_run: bool) -> None:
    """One published version: its number for scripts, a sentence for people."""
    context.out.document({**document(published), "new_run": new_run})
    context.out.line(str(published.version))
    for note in published.notes:
        context.out.note(f"note: {note}")
    context.out.note(sentence(published))


def sentence(published: "Published") -> str:
    """What was published, for people."""
    took = words.seconds(sum(published.seconds.values()))
    smaller = f" ({words.ratio(published.checkpoint_bytes, published.payload_bytes)} smaller)" if published.payload_bytes else ""
    return (
        f"version {published.version}: {published.form.value}, {words.percent(published.changed_lanes, published.lanes)} changed, "
        f"payload {words.size(published.payload_bytes)}{smaller}, {words.size(published.total_bytes)} sent in all, {took}"
    )


def document(published: "Published") -> dict[str, object]:
    """What was published, for scripts."""
    return {
        "version": published.version,
        "step": published.step,
        "form": published.form.value,
        "manifest": published.ref.manifest,
        "changed_lanes": published.changed_lanes,
        "lanes": published.lanes,
        "changed": published.changed_fraction,
        "checkpoint_bytes": published.checkpoint_bytes,
        "payload_bytes": published.payload_bytes,
        "total_bytes": published.total_bytes,
        "uploaded": dict(published.uploaded),
        "ratio": published.ratio,
        "payload_ratio": published.payload_ratio,
        "shards": published.shards,
        "seconds": dict(published.seconds),
        "notes": list(published.notes),
    }
