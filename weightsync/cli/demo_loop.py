"""One turn of the demo: publish a checkpoint, wait for the subscribers, compare."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from weightsync.cli.channels import me
from weightsync.cli.context import Context
from weightsync.cli.demo_compare import identical
from weightsync.cli.demo_followers import Followers
from weightsync.cli.demo_input import Checkpoint
from weightsync.cli.demo_table import Row
from weightsync.clock import SYSTEM
from weightsync.errors import Invalid

POLL_S = 0.05


def check_store(url: str) -> None:
    """Raises `Invalid` for a store that other processes cannot see."""
    if url.startswith("mem:"):
        raise Invalid("subscriber processes cannot see a store in our memory", remedy="leave --store out, or name a directory or bucket")


class Loop:
    """A publisher and its subscribers; a context manager. It closes `context`."""

    def __init__(self, context: Context, home: Path, images: Path, subscribers: int, doing: Callable[[str], None]) -> None:
        self._doing = doing
        arguments = ["--store", context.store_url, "--run", context.run, "--poll-s", str(POLL_S)]
        self._stack = ExitStack()
        self._publisher = context.publisher(who=me(), model="", single_writer=False)
        self._followers = Followers(subscribers, arguments, home, images)
        self._context = context

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._context)
            publisher = stack.enter_context(self._publisher)
            publisher.start()  # makes the run, so that subscribers find it
            stack.enter_context(self._followers)
            self._publish = publisher.publish_checkpoint
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def carry(self, checkpoint: Checkpoint) -> Row:
        """Brings one checkpoint to all subscribers. Raises what publishing raises, `Unavailable` when a subscriber gives up."""
        self._doing(f"publishing step {checkpoint.step} ...")
        started_s = SYSTEM.monotonic_s()
        published = self._publish(checkpoint.path, step=checkpoint.step)
        publish_s = SYSTEM.monotonic_s() - started_s
        self._doing(f"waiting for {len(self._followers.all)} subscribers to rebuild version {published.version} ...")
        events = [follower.wait_for(published.version, published.checkpoint_bytes) for follower in self._followers.all]
        self._doing("comparing every byte ...")
        same = [identical(checkpoint.path, follower.out / str(published.version)) for follower in self._followers.all]
        return Row(
            published.version,
            checkpoint.step,
            published.form.value,
            published.changed_lanes,
            published.lanes,
            published.total_bytes,
            published.checkpoint_bytes,
            publish_s,
            max(float(event["seconds"]) for event in events),
            len(same),
            sum(same),
            checkpoint.remark,
        )
