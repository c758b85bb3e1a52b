"""`weightsync publish --watch DIR`: a daemon that publishes what appears."""

from pathlib import Path
from typing import TYPE_CHECKING

from weightsync.cli import failures
from weightsync.cli.context import Context
from weightsync.cli.publish import document, is_new, sentence
from weightsync.errors import Invalid, WeightsyncError

if TYPE_CHECKING:
    from weightsync.publisher.publisher import Publisher
    from weightsync.publisher.result import Published
    from weightsync.publisher.watch import Found, Watcher


def run(context: Context, directory: Path, *, note: str, who: str, model: str, single_writer: bool, replace_model: bool) -> None:
    """Until SIGTERM or Ctrl-C, which wait for the checkpoint in flight. Raises `Fenced`, `Conflict` and what else cannot mend itself."""
    from weightsync.daemon.publish import WatchingPublisher
    from weightsync.telemetry import names

    if not directory.is_dir():  # not once the run is claimed: that ends a publisher that runs well
        raise Invalid(f"{str(directory)!r} is not a directory", remedy="name the directory in which checkpoints appear")
    new = is_new(context)

    def published(found: "Found", done: "Published") -> None:
        context.out.event("published", sentence(done), path=str(found.path), **document(done), new_run=new and done.version == 1)

    def complain(error: WeightsyncError) -> None:
        failure = failures.describe(error)
        context.out.event("error", f"error: {error}", kind=failure.kind, message=failure.message, remedy=failure.remedy)

    with (
        context.process("publisher", names.PUBLISHER) as process,
        context.publisher(who=who, model=model, single_writer=single_writer, replace_model=replace_model) as publisher,
    ):
        step = _step(context, publisher)
        daemon = WatchingPublisher(
            process,
            publisher,
            _watcher(context, directory, step),
            run=context.run,
            note=note,
            interval_s=context.settings.poll_s,
            plane=context.plane(),
            on_published=published,
            on_error=complain,
            limits=context.thresholds,
        )
        context.out.note(f"watching {directory} for checkpoints; the run is at version {publisher.version}{_skips(step)}")
        daemon.run()
    context.out.note("stopped")


def _step(context: Context, publisher: "Publisher") -> int | None:
    version = publisher.start()
    return context.catalog.manifest_of(version).manifest.step if version else None


def _skips(step: int | None) -> str:
    return "" if step is None else f", step {step}: checkpoints there up to that step count as published"


def _watcher(context: Context, directory: Path, step: int | None) -> "Watcher":
    from blake3 import blake3

    from weightsync.publisher.watch import Watcher

    what = blake3(f"{context.store.url}\0{context.run}\0{directory.resolve()}".encode("utf-8", "surrogateescape")).hexdigest()
    return Watcher(directory, context.cache / "watch" / f"{what[:16]}.json", published_step=step)
