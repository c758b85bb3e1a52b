"""Puts the parts together from settings: what runs where on this host.

    <cache>/objects                 verified objects, bounded, shared by all runs
    <cache>/publisher/<run>-<id>    the base of a publisher
    <cache>/accepted/<run>-<id>     what a subscriber has accepted of its channel
    <images>/<run>-<id>             the image of a subscriber; by default in shared memory

`<id>` tells apart stores, channels and caches, so that two subscribers share nothing unless they are the same one.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from blake3 import blake3

from weightsync.catalog import Catalog
from weightsync.catalog.open import open_catalog
from weightsync.clock import SYSTEM, Clock
from weightsync.config import Settings, read_text
from weightsync.engine.api import Change, Engine
from weightsync.engine.open import open_engine
from weightsync.engine.session import Swapper
from weightsync.engine.swap import SwapSettings
from weightsync.errors import Conflict, Invalid
from weightsync.format.keys import LATEST
from weightsync.publisher.checkpoint import open_checkpoint
from weightsync.publisher.commit import Settings as PublishSettings
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.source import Chunking
from weightsync.replica.cache import ObjectCache
from weightsync.replica.fetch import ShardSource
from weightsync.replica.past import PastLimits
from weightsync.replica.replica import Replica
from weightsync.replica.restore import restore
from weightsync.replica.update import Progress
from weightsync.store.api import ObjectStore
from weightsync.subscriber.engine_output import EngineOutput
from weightsync.subscriber.follow import Output, Subscriber
from weightsync.subscriber.outputs import DirectoryOutput
from weightsync.subscriber.state import AcceptedFile

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  the kernel's, not a predictable file in it: directories there are checked for their owner
LEAST_SHARED_BYTES = 1 << 30  # containers often get 64 MiB: no place for weights


def open_publisher(
    settings: Settings,
    store: ObjectStore,
    *,
    who: str,
    model: str = "",
    single_writer: bool = False,
    publish: PublishSettings | None = None,
    clock: Clock = SYSTEM,
) -> Publisher:
    """A publisher whose base lies in the cache. It has not claimed the run yet. Raises `Conflict` while another one uses the base."""
    catalog = open_catalog(settings, store, single_writer=single_writer, clock=clock)
    try:
        replica = Replica(settings.cache / "publisher" / _name(settings, store, "publisher"), past=PastLimits(), clock=clock)
    except Conflict as error:  # another directory would not help: the newer publisher would fence the one that runs
        raise Conflict(
            f"run {settings.run!r} is being published on this host: {error.message}", remedy="stop that publisher first"
        ) from error
    return Publisher(catalog, replica, ShardSource(catalog), who=who, model=model, settings=publish)


def open_shards(settings: Settings, catalog: Catalog) -> ShardSource:
    """Shards of the run, by way of this host's cache of objects; those of a store on this host's own disks are not kept twice."""
    if not catalog.store.url.startswith("s3:"):
        return ShardSource(catalog)
    return ShardSource(catalog, ObjectCache(settings.cache / "objects", settings.cache_max_bytes))


def open_subscriber(
    settings: Settings,
    store: ObjectStore,
    *,
    channel: str = LATEST,
    version: int | None = None,
    out: Path | None = None,
    keep: int = 2,
    engines: Sequence[str] = (),
    swap: SwapSettings | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM,
) -> Subscriber:
    """A subscriber with its image; of a fixed `version` instead of a channel where one is given.

    Its outputs are the directory `out`, and the engines at the URLs `engines`, which are changed together as `swap` says.
    Raises `Conflict` while another one uses image or output, and what `open_engine` raises.
    """
    catalog = open_catalog(settings, store, clock=clock)
    name = _name(settings, store, f"subscriber\0{channel}" if version is None else f"subscriber\0={version}")
    with ExitStack() as stack:
        accepted = AcceptedFile(settings.cache / "accepted" / name, catalog.keys.run, channel)
        stack.callback(accepted.close)
        outputs: list[Output] = []
        if out is not None:
            outputs.append(DirectoryOutput(out, keep=keep))
            stack.callback(outputs[0].close)
        cache = ObjectCache(settings.cache / "objects", settings.cache_max_bytes, clock=clock)
        replica = Replica(images(settings) / name, past=PastLimits(), clock=clock)
        stack.callback(replica.close)
        if engines:
            outputs.append(_engine_output(settings, catalog, replica, engines, keep=keep, swap=swap, clock=clock))
            stack.callback(outputs[-1].close)
        subscriber = Subscriber(
            catalog, replica, ShardSource(catalog, cache), accepted, channel=channel, fixed=version, outputs=outputs, progress=progress
        )
        stack.pop_all()
    return subscriber


def _engine_output(
    settings: Settings,
    catalog: Catalog,
    replica: Replica,
    urls: Sequence[str],
    *,
    keep: int,
    swap: SwapSettings | None,
    clock: Clock,
) -> EngineOutput:
    def write(change: Change, target: Path) -> None:
        restore(catalog, catalog.manifest_of(change.version.version, change.version.manifest), replica, target)

    token = engine_token(settings)
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for url in urls:
            if url in engines:
                raise Invalid(f"engine {url!r} was named twice", remedy="name it once")
            engines[url] = open_engine(url, token=token, keep=keep, write=write)
            stack.callback(engines[url].close)
        swapper = Swapper(engines, swap, clock=clock)
        stack.pop_all()
    return EngineOutput(swapper)


def engine_token(settings: Settings) -> str | None:
    """The bearer token for engines over HTTP, if the settings name one. Raises `Invalid`."""
    if settings.engine_token_file is None:
        return None
    try:
        return read_text(settings.engine_token_file).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"the token file of engines cannot be read: {error}", remedy="name a readable text file") from error


def adopt_checkpoint(
    settings: Settings, store: ObjectStore, checkpoint: Path, *, channel: str = LATEST, version: int | None = None, clock: Clock = SYSTEM
) -> int:
    """Makes the image of such a subscriber the version that `checkpoint` is, if it is one and nothing is held yet; its number, or 0.

    Raises what `open_checkpoint` raises, `Conflict` while the subscriber runs, `NoSpace`, `Unavailable`.
    """
    with open_subscriber(settings, store, channel=channel, version=version, clock=clock) as subscriber:
        if subscriber.version is not None:
            return subscriber.version.version
        layout = subscriber.expected_layout()
        if layout is None:
            return 0
        with closing(open_checkpoint(checkpoint, Chunking.of(layout))) as source:
            found = subscriber.adopt(source)
    return found.version if found else 0


def images(settings: Settings) -> Path:
    """Where images lie: where the settings say, else in shared memory, else (where that is too small to be meant for it) in the cache."""
    if settings.images is not None:
        return settings.images
    try:
        shared = os.access(SHARED_MEMORY, os.W_OK) and shutil.disk_usage(SHARED_MEMORY).total >= LEAST_SHARED_BYTES
    except OSError:
        shared = False
    return SHARED_MEMORY / f"weightsync-{os.geteuid()}" if shared else settings.cache / "images"


def _name(settings: Settings, store: ObjectStore, role: str) -> str:
    parts = (store.url, settings.run or "", role, str(settings.cache.absolute()))
    return f"{settings.run}-{blake3(chr(0).join(parts).encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
