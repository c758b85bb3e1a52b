"""A run whose versions are records and nothing else: for tests of who announces, watches and moves, not of who carries weights.

run = TinyRun(Catalog(store, "run"))
run.publish(3)              # versions 1 to 3
run.catalog.move("serving", 2, ...)
"""

from collections.abc import Callable

from weightsync.catalog import Catalog, Claim, NewVersion
from weightsync.format.refs import Ref
from weightsync.format.versions import Form, Shard
from weightsync.store.settle import ensure

WHO = "trainer"


class TinyRun:
    """A publisher of one run. Its versions cannot be rebuilt: no layout, leaves or shards stand in the store."""

    def __init__(
        self, catalog: Catalog, *, model: str = "tiny", layout: Ref | None = None, shard_bytes: Callable[[], int] | None = None
    ) -> None:
        """Opens the run and claims it. `layout` is what all versions name; None: something that is not there.

        `shard_bytes`: each version names a shard of so many bytes; None: none.
        """
        self.catalog = catalog
        self._shard_bytes = shard_bytes
        self._layout = layout or Ref.of(b"layout")
        catalog.open_run(model)
        self.claim: Claim = catalog.claim(WHO)

    def publish(self, count: int = 1) -> Claim:
        """Commits `count` versions, each a delta without shards."""
        for _ in range(count):
            self._commit()
        return self.claim

    def _shards(self, number: int) -> tuple[Shard, ...]:
        if self._shard_bytes is None:
            return ()
        return (Shard(Ref.of(b"shard %d" % number).digest, self._shard_bytes(), 0, 0),)

    def _commit(self) -> None:
        number, parent = self.catalog.next_number(self.claim), self.claim.head.version
        new = NewVersion(
            number=number,
            parent=parent,
            base=parent,
            form=Form.DELTA if parent else Form.SNAPSHOT,
            step=number * 10,
            layout=self._layout,
            root=Ref.of(b"root %d" % number).digest,
            digests=Ref.of(b"digests"),
            files=Ref.of(b"files"),
            shards=self._shards(number),
            checkpoint_bytes=1000,
            changed_lanes=number,
        )
        plan = self.catalog.plan_commit(self.claim, new)
        for key, data in plan.objects:
            ensure(self.catalog.store, key, data)
        self.claim = self.catalog.finish_commit(self.claim, plan)
