"""What a verb works with: settings, output, and the parts that settings describe, built when first asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from weightsync.cli.output import Output
from weightsync.errors import Invalid

if TYPE_CHECKING:  # these cost a fifth of a second to import, and `--help` needs none
    from weightsync.catalog import Catalog
    from weightsync.config import Settings
    from weightsync.publisher.publisher import Publisher
    from weightsync.replica.update import Progress
    from weightsync.store.api import ObjectStore
    from weightsync.subscriber.follow import Subscriber

_FLAGS_OF_THE_CLI = {"as_json", "debug"}


class Context:
    """One call of a verb. Use as a context manager: it closes what was opened."""

    def __init__(self, flags: dict[str, Any]) -> None:
        """`flags` are the shared flags by name; None means not given."""
        self._flags = {name: value for name, value in flags.items() if name not in _FLAGS_OF_THE_CLI}
        self.out = Output(as_json=bool(flags.get("as_json")))
        self._opened: list[ObjectStore] = []

    @cached_property
    def settings(self) -> "Settings":
        """Flags, environment, file. Sets up the log on the way."""
        from weightsync import telemetry
        from weightsync.config import load

        settings = load(**self._flags)
        telemetry.setup(settings.log_level, as_json=settings.log_format == "json")
        return settings

    @property
    def store_url(self) -> str:
        """Raises `Invalid` when no store was named."""
        return _given(self.settings.store, "store", "--store URL")

    @property
    def run(self) -> str:
        """Raises `Invalid` when no run was named."""
        return _given(self.settings.run, "run", "--run RUN")

    @property
    def cache(self) -> Path:
        """Where this host keeps verified objects, images and publisher bases."""
        return self.settings.cache

    @cached_property
    def store(self) -> "ObjectStore":
        """The store, not yet contacted."""
        from weightsync.store.open import open_store

        store = open_store(self.store_url)
        self._opened.append(store)
        return store

    @cached_property
    def catalog(self) -> "Catalog":
        """The run in the store."""
        from weightsync.wiring import open_catalog

        return open_catalog(self.settings, self.store)

    def with_settings(self, **changes: Any) -> "Context":
        """Another context whose flags differ. To be closed on its own."""
        other = Context({**self._flags, **changes})
        other.out = self.out
        return other

    @contextmanager
    def publisher(self, *, who: str, model: str, single_writer: bool) -> "Iterator[Publisher]":
        """The run's publisher, with its base in the cache."""
        from weightsync.wiring import open_publisher

        with open_publisher(self.settings, self.store, who=who, model=model, single_writer=single_writer) as publisher:
            yield publisher

    @contextmanager
    def subscriber(self, *, channel: str, out: Path | None, keep: int, progress: "Progress | None" = None) -> "Iterator[Subscriber]":
        """A subscriber of a channel, with its image and what it accepted on this host."""
        from weightsync.wiring import open_subscriber

        subscriber = open_subscriber(self.settings, self.store, channel=channel, out=out, keep=keep, progress=progress)
        try:
            yield subscriber
        finally:
            subscriber.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for store in self._opened:
            store.close()


def _given(value: str | None, name: str, flag: str) -> str:
    if value is None:
        raise Invalid(f"no {name} was named", remedy=f"give {flag}, set WEIGHTSYNC_{name.upper()}, or write it into the settings file")
    return value
