"""`weightsync repair`: bring back what a store has lost."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.failures import FOUND_WRONG
from weightsync.cli.options import CACHE, KEY, RUN, STORE, TRUST, verb

if TYPE_CHECKING:
    from weightsync.retention.holders import Holder


@verb(STORE, RUN, TRUST, KEY, CACHE)
def repair(
    context: Context,
    *,
    source: Annotated[list[str] | None, typer.Option("--from", metavar="URL", help="Another store with the run; may be repeated.")] = None,
    replica: Annotated[
        list[Path] | None, typer.Option("--replica", metavar="DIR", help="A stopped subscriber's image directory; may be repeated.")
    ] = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="N", help="Only this version (a number, or a channel), with its chain.")
    ] = None,
) -> int:
    """Brings back what is missing or damaged in a store.

    Reads and checks every object that must stand, and fetches those that are missing or wrong from who still has them: other stores, this
    host's cache of verified objects, and images. A version that nothing leads to any more is made a snapshot of, from an image that holds
    it. Ends with 1 where something stays lost.

    Examples:
      1. From a copy
           weightsync repair --store s3://bucket/models --run tuning --from s3://elsewhere/models
      2. From what this host still has
           weightsync repair --store s3://bucket/models --run tuning --replica /dev/shm/weightsync-0/tuning-1f2e3d4c5b6a7988
    """
    from weightsync.cli import look
    from weightsync.retention.repair import Repairer

    with _holders(context, source or [], replica or []) as holders, context.out.progress("checking") as advance:
        number = None
        if version is not None:
            number = int(version) if version.isascii() and version.isdigit() else look.resolve(context.catalog, version).ref.version
        done = Repairer(context.catalog, holders, progress=advance).repair(number)
    for key, whose in done.brought:
        context.out.line(f"back  {key}, from {whose}")
    for made in done.snapshots:
        context.out.line(f"back  version {made}, by a snapshot")
    for what, why in done.lost:
        context.out.line(f"LOST  {what}: {why}")
    context.out.line(
        f"{words.count(done.looked_at, 'object')} looked at, {len(done.brought) + len(done.snapshots)} brought back, {len(done.lost)} lost"
    )
    context.out.document(
        {
            "ok": not done.lost,
            "looked_at": done.looked_at,
            "brought": [{"key": key, "from": whose} for key, whose in done.brought],
            "snapshots": list(done.snapshots),
            "lost": [{"what": what, "why": why} for what, why in done.lost],
        }
    )
    return FOUND_WRONG if done.lost else 0


@contextmanager
def _holders(context: Context, stores: list[str], replicas: list[Path]) -> "Iterator[list[Holder]]":
    from weightsync.replica.cache import ObjectCache
    from weightsync.replica.replica import Replica
    from weightsync.retention.holders import CacheHolder, ReplicaHolder, StoreHolder
    from weightsync.store.open import open_store

    with ExitStack() as stack:
        holders: list[Holder] = []
        for url in stores:
            store = open_store(url, allow_link_local=context.settings.allow_link_local)
            stack.callback(store.close)
            holders.append(StoreHolder(store))
        kept = context.cache / "objects"
        if kept.is_dir():
            cache = ObjectCache(kept, context.settings.cache_max_bytes)
            stack.callback(cache.close)
            holders.append(CacheHolder(cache, str(kept)))
        holders += [ReplicaHolder(stack.enter_context(Replica(path)), context.catalog.keys) for path in replicas]
        yield holders
