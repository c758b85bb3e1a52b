"""What `doctor` looks at in the store: that it answers, what it can do, its clock, the run and where its channels point."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from weightsync.cli.findings import Finding, Level, attempt, ok, warning
from weightsync.cli.words import age, count, seconds
from weightsync.clock import SYSTEM, new_write_id
from weightsync.errors import NotFound, WeightsyncError

if TYPE_CHECKING:
    from weightsync.catalog import Catalog, Head
    from weightsync.format.versions import Payload, Shard
    from weightsync.store.api import ObjectStore

SKEW_S = 5.0
OBJECTS = 1000  # that are asked for, the newest first
READERS = 16
PROBES = "probes/"  # below the run's prefix: credentials may be limited to it


def check_store(store: "ObjectStore", prefix: str, *, write: bool) -> Iterator[Finding]:
    """Reachability, and with `write` what only writing shows. `prefix` is the run's, or empty."""
    reached = attempt("store", lambda: _reach(store, prefix))
    yield reached
    if reached.level is not Level.OK:
        return
    if not write:
        yield ok("writes", "not tried (--read-only)")
        return
    yield attempt("writes", lambda: _capability(store, prefix))
    yield attempt("clock", lambda: _skew(store, prefix))


def _reach(store: "ObjectStore", prefix: str) -> Finding:
    started_s = SYSTEM.monotonic_s()
    found = next(store.list(prefix), None)
    answer = f"{store.url} answers in {seconds(SYSTEM.monotonic_s() - started_s)}"
    return ok("store", answer if found else f"{answer}; nothing is in it{' under ' + prefix if prefix else ''}")


def _capability(store: "ObjectStore", prefix: str) -> Finding:
    from weightsync.store.probe import probe

    found = probe(store, prefix + PROBES)
    if found == "full":
        return ok("writes", "full: conditional creates and swaps are honoured")
    lacking = "creates are conditional, swaps are not" if found == "create_only" else "writes are not conditional"
    remedy = "subscribing is fine; to publish, use another store, or --single-writer and see to it that only one process publishes"
    return warning("writes", f"{found}: {lacking}", remedy)


def _skew(store: "ObjectStore", prefix: str) -> Finding:
    key = f"{prefix}{PROBES}clock-{new_write_id()}"
    before_s = SYSTEM.now_s()
    store.put(key, b"clock")
    after_s = SYSTEM.now_s()
    try:
        stamp_s = store.stat(key).modified_s
    finally:
        with suppress(WeightsyncError):
            store.delete(key)
    # Stamps may be cut to whole seconds, and were set at some moment between our two looks.
    skew_s = stamp_s - before_s if stamp_s < before_s - 1 else max(0.0, stamp_s - after_s)
    if abs(skew_s) <= SKEW_S:
        return ok("clock", f"agrees with the store's within {SKEW_S:.0f} s")
    direction = "ahead of" if skew_s > 0 else "behind"
    return warning("clock", f"the store's clock is {age(abs(skew_s))} {direction} ours", "synchronise clocks (NTP): S3 refuses 15 minutes")


def check_run(catalog: "Catalog") -> Iterator[Finding]:
    """The run, its channels, whether the newest version's records can be read and are trusted, and whether its shards are there."""
    run = attempt("run", lambda: _run(catalog))
    yield run
    if run.level is not Level.OK:
        return
    for channel in sorted({"latest", *_channels(catalog)}):
        yield attempt(f"channel {channel}", lambda channel=channel: _channel(catalog, channel))  # type: ignore[misc]
    yield attempt("objects", lambda: _objects(catalog))


def _run(catalog: "Catalog") -> Finding:
    run = catalog.run()
    return ok("run", f"{run.run!r}, model {run.model!r}" if run.model else repr(run.run))


def _channels(catalog: "Catalog") -> list[str]:
    with suppress(WeightsyncError):
        return catalog.channels()
    return []


def _channel(catalog: "Catalog", channel: str) -> Finding:
    name = f"channel {channel}"
    head = catalog.head(channel)
    if head is None or head.version is None:
        return warning(name, "points to nothing yet", "publish a checkpoint")
    manifest = catalog.manifest_of(head.version.version, head.version.manifest).manifest
    catalog.layout(manifest.layout)
    moved = age(SYSTEM.now_s() - head.move.created_ms / 1000)
    detail = f"version {head.move.version}, epoch {head.move.epoch}, sequence {head.move.sequence}, moved {moved} ago by {head.move.who}"
    if _expired(head):
        return warning(name, f"{detail}, expired", "the publisher, or who renews the channel, is not running")
    return ok(name, detail)


def _objects(catalog: "Catalog") -> Finding:
    """Whether the shards stand that a host which holds nothing would download for the newest version. Asks for sizes, reads none."""
    from weightsync.replica.path import find_path

    head = catalog.head()
    if head is None or head.version is None:
        return ok("objects", "none are needed yet")
    record = catalog.manifest_of(head.version.version, head.version.manifest)
    steps = reversed(find_path(catalog, None, record).steps)
    needed = list(islice(((step, shard) for step in steps for shard in step.shards), OBJECTS))
    with ThreadPoolExecutor(READERS) as pool:
        sizes = list(pool.map(lambda one: _size(catalog, *one), needed))
    for (step, shard), (key, size) in zip(needed, sizes, strict=True):
        if size is None or size < shard.nbytes:
            state = "is missing" if size is None else f"has {size} bytes instead of {shard.nbytes}"
            detail = f"shard {key!r} of version {step.target.version} {state}; version {head.version.version} needs it"
            return Finding("objects", Level.WRONG, detail, "bring it back with `weightsync repair`; `weightsync verify` shows all damage")
    return ok("objects", f"{count(len(needed), 'shard')} that lead to version {head.version.version} are there")


def _size(catalog: "Catalog", step: "Payload", shard: "Shard") -> tuple[str, int | None]:
    key = catalog.keys.shard(step.writer, step.target.version, step.base_version, shard.digest)
    try:
        return key, catalog.store.stat(key).size_bytes
    except NotFound:
        return key, None


def _expired(head: "Head") -> bool:
    return head.expires_ms is not None and head.expires_ms < SYSTEM.now_s() * 1000
