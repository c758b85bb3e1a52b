"""`weightsync publish --watch DIR`: a daemon that publishes what appears."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from weightsync.cli import failures
from weightsync.cli.context import Context
from weightsync.cli.publish import document, sentence
from weightsync.cli.signals import stop_event
from weightsync.errors import Corrupt, Invalid, NotFound, Unavailable, Unsupported, WeightsyncError

if TYPE_CHECKING:
    from weightsync.publisher.publisher import Publisher
    from weightsync.publisher.watch import Found, Watcher

MAX_WAIT_S = 60.0


def run(context: Context, publisher: "Publisher", directory: Path, *, note: str, poll_s: float) -> None:
    """Until SIGTERM or Ctrl-C, which wait for the checkpoint in flight. Raises `Fenced`, `Conflict` and what else cannot mend itself."""
    with stop_event() as stop:
        watch = _Watch(context, publisher, directory, note, stop)
        context.out.note(f"watching {directory} for checkpoints; the run is at version {publisher.version}")
        wait_s = poll_s
        while not stop.is_set():
            wait_s = poll_s if watch.once() else min(MAX_WAIT_S, 2 * wait_s)
            stop.wait(wait_s)
    context.out.note("stopped")


class _Watch:
    def __init__(self, context: Context, publisher: "Publisher", directory: Path, note: str, stop: threading.Event) -> None:
        self._context, self._publisher, self._note, self._stop = context, publisher, note, stop
        self._watcher = _watcher(context, publisher, directory)
        self._refused: set[str] = set()

    def once(self) -> bool:
        """Publishes what is ready, until told to stop. False when the store or a disk is not to be had: wait longer."""
        try:
            for found in self._watcher.look():
                if found.stamp not in self._refused and not self._stop.is_set():
                    self._publish(found)
        except Unavailable as error:
            self._complain(error)
            return False
        return True

    def _publish(self, found: "Found") -> None:
        try:
            published = self._publisher.publish_checkpoint(found.path, step=found.step, note=self._note)
        except (Invalid, Corrupt, Unsupported, NotFound) as error:  # the checkpoint's fault: others may still be good
            self._refused.add(found.stamp)
            self._complain(error)
            return
        self._watcher.published(found)
        self._context.out.event("published", sentence(published), path=str(found.path), **document(published))

    def _complain(self, error: WeightsyncError) -> None:
        failure = failures.describe(error)
        self._context.out.event("error", f"error: {error}", kind=failure.kind, message=failure.message, remedy=failure.remedy)


def _watcher(context: Context, publisher: "Publisher", directory: Path) -> "Watcher":
    from blake3 import blake3

    from weightsync.publisher.watch import Watcher

    version = publisher.start()
    step = context.catalog.manifest_of(version).manifest.step if version else None
    what = blake3(f"{context.store.url}\0{context.run}\0{directory.resolve()}".encode("utf-8", "surrogateescape")).hexdigest()
    return Watcher(directory, context.cache / "watch" / f"{what[:16]}.json", published_step=step)
