"""What a verb works with: settings, output, and the parts that settings describe, built when first asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from weightsync.cli.output import Output
from weightsync.errors import Invalid

if TYPE_CHECKING:  # these cost a fifth of a second to import, and `--help` needs none
    from collections.abc import Sequence

    from weightsync.catalog import Catalog
    from weightsync.config import Settings
    from weightsync.daemon.hints import ControlPlane
    from weightsync.daemon.process import Process
    from weightsync.engine.swap import SwapSettings
    from weightsync.publisher.publisher import Publisher
    from weightsync.replica.update import Progress
    from weightsync.store.api import ObjectStore
    from weightsync.subscriber.follow import Subscriber
    from weightsync.telemetry.alarms import Thresholds
    from weightsync.telemetry.names import Metric

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
        # Who lets machines read the log wants to see in it what happens, not only what goes wrong.
        as_json = settings.log_format == "json"
        level = "info" if as_json and "log_level" not in settings.model_fields_set else settings.log_level
        telemetry.setup(level, as_json=as_json)
        self.out.to_log = as_json
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

        store = open_store(self.store_url, allow_link_local=self.settings.allow_link_local)
        self._opened.append(store)
        return store

    @cached_property
    def catalog(self) -> "Catalog":
        """The run in the store."""
        from weightsync.catalog.open import open_catalog

        return open_catalog(self.settings, self.store)

    @contextmanager
    def process(self, role: str, metrics: "Sequence[Metric]") -> "Iterator[Process]":
        """What a daemon runs in: SIGTERM, probes, metrics, the service manager. `role` goes into metrics and log."""
        from importlib import metadata

        from weightsync.daemon.process import Process

        try:
            version = metadata.version("weightsync")
        except metadata.PackageNotFoundError:
            version = "source"
        address, tell = self.settings.metrics, self.out.finishing
        with Process(role, metrics=metrics, address=address, version=version, on_interrupt=tell) as process:
            if process.listening is not None and self.settings.metrics is not None:
                self.out.note("metrics and health on http://{}:{}/".format(*process.listening))
            yield process

    @property
    def thresholds(self) -> "Thresholds":
        """From where on something is an alarm."""
        from weightsync.telemetry.alarms import Thresholds

        settings = self.settings
        return Thresholds(
            settings.alarm_behind_s,
            settings.alarm_behind_versions,
            settings.alarm_below_s,
            settings.alarm_unchanged_versions,
            settings.alarm_change_factor,
            settings.alarm_silent_s,
        )

    def plane(self) -> "ControlPlane | None":
        """The control plane that the settings name. A hint: without gRPC in this installation there is none, and a warning."""
        if self.settings.server is None:
            return None
        try:
            from weightsync.daemon.plane import GrpcPlane, connect
        except ModuleNotFoundError as error:
            self.out.note(f"warning: going on without the control plane: {error.name} is missing: pip install 'weightsync[control]'")
            return None
        return GrpcPlane(connect(self.settings))

    def with_settings(self, **changes: Any) -> "Context":
        """Another context whose flags differ. To be closed on its own."""
        other = Context({**self._flags, **changes})
        other.out = self.out
        return other

    @contextmanager
    def publisher(self, *, who: str, model: str, single_writer: bool, replace_model: bool = False) -> "Iterator[Publisher]":
        """The run's publisher, with its base in the cache."""
        from weightsync.publisher.commit import Settings
        from weightsync.wiring import open_publisher

        settings, publish = self.settings, Settings(replace_model=replace_model)
        with open_publisher(settings, self.store, who=who, model=model, single_writer=single_writer, publish=publish) as publisher:
            yield publisher

    @contextmanager
    def subscriber(
        self,
        *,
        channel: str,
        version: int | None = None,
        out: Path | None,
        keep: int,
        engines: "Sequence[str]" = (),
        swap: "SwapSettings | None" = None,
        progress: "Progress | None" = None,
    ) -> "Iterator[Subscriber]":
        """A subscriber of a channel, or of a fixed version, with its image and what it accepted on this host."""
        from weightsync.wiring import open_subscriber

        open_it = partial(open_subscriber, self.settings, self.store, channel=channel, version=version)
        subscriber = open_it(out=out, keep=keep, engines=engines, swap=swap, progress=progress)
        try:
            yield subscriber
        finally:
            subscriber.close()

    def adopt(self, checkpoint: Path, *, channel: str, version: int | None) -> int:
        """Makes that subscriber's image the version that a checkpoint on this host is; its number, or 0 for none."""
        from weightsync.wiring import adopt_checkpoint

        return adopt_checkpoint(self.settings, self.store, checkpoint, channel=channel, version=version)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for store in self._opened:
            store.close()


def _given(value: str | None, name: str, flag: str) -> str:
    if value is None:
        raise Invalid(f"no {name} was named", remedy=f"give {flag}, set WEIGHTSYNC_{name.upper()}, or write it into the settings file")
    return value
