"""Multipart uploads that nobody completes: found and aborted by the collector, if their writer is past."""

from tests.retention.tools import Bench
from weightsync.format.keys import RunKeys
from weightsync.format.operators import Boundary
from weightsync.retention.uploads import ABANDONED_S, abort_stale
from weightsync.store.api import PendingUploads, Upload
from weightsync.store.memory import MemoryStore
from weightsync.store.s3 import S3Store

D = "a" * 64
NOW = 1_000_000.0
KEYS = RunKeys("r")


class Parts(MemoryStore):
    """A memory store that keeps uploads in parts."""

    def pending_uploads(self, prefix):
        yield from [upload for upload in self.pending if upload.key.startswith(prefix)]

    def abort_upload(self, upload):
        self.pending.remove(upload)


def left(begun: dict[str, float], *, before_s: float = NOW, boundary: Boundary | None = None) -> set[str]:
    store = Parts("parts")
    store.pending = [Upload(key, str(number), at) for number, (key, at) in enumerate(begun.items())]
    aborted = abort_stale(store, KEYS, boundary or Boundary("r", "0" * 16), epoch=5, before_s=before_s, now_s=NOW)
    assert aborted == len(begun) - len(store.pending)
    return {upload.key for upload in store.pending}


def test_uploads_of_fenced_publishers_go_and_others_stay():
    fenced, alive, layout = KEYS.shard("4", 7, 6, D), KEYS.shard("5", 7, 6, D), KEYS.layout(D)
    collector, leaves = KEYS.shard("g0123456789abcdef", 7, 0, D), KEYS.digests("4", 7, D)
    begun = dict.fromkeys((fenced, alive, layout, collector, leaves, "other/shards/4-7-6/" + D), NOW - 10)
    assert left(begun) == {alive, layout, collector, "other/shards/4-7-6/" + D}
    assert left(begun, before_s=NOW - 20) == set(begun)  # within the grace time


def test_those_of_condemned_versions_and_abandoned_ones_go():
    alive = KEYS.shard("5", 7, 6, D)
    assert left({alive: NOW - 10}, boundary=Boundary("r", "0" * 16, versions=((7, 7),))) == set()
    assert left({alive: NOW - ABANDONED_S - 1, KEYS.layout(D): NOW - ABANDONED_S - 1}) == set()


def test_which_stores_have_them(tmp_path):
    assert isinstance(Parts("x"), PendingUploads)
    assert issubclass(S3Store, PendingUploads)
    bench = Bench(tmp_path)
    assert not isinstance(bench.store, PendingUploads)
    bench.publish(2)
    assert bench.collect(1).uploads == 0
