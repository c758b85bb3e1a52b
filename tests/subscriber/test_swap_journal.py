"""What a rollout worker writes down of its swaps: a proof that failed shows in the count, and what never was a swap does not."""

import threading

import pytest

from tests.subscriber.test_engine_output import Scene
from weightsync.cli.rl_work import Swaps
from weightsync.rl.journal import read_journal


@pytest.fixture
def scene(world):
    return Scene(world, count=1)


def poll(scene, swaps, times):
    """So many looks as a worker takes them."""
    stop, subscriber = threading.Event(), scene.subscriber
    left = [times]

    def one_less():
        left[0] -= 1
        if not left[0]:
            stop.set()

    def done(step):
        swaps.done(step)
        one_less()

    def failed(error):
        swaps.failed(error, subscriber.version, subscriber.served)
        one_less()

    subscriber.run(stop, interval_s=0.001, on_step=done, on_error=failed)


def test_a_swap_whose_proof_fails_is_counted_as_one_that_was_not_proven(scene, tmp_path):
    swaps = Swaps(tmp_path / "w.jsonl", "eu")
    poll(scene, swaps, 2)
    scene.publish()
    scene.engines[0].faults.arm("nothing")
    poll(scene, swaps, 2)  # the second look finds that it is too early to try again
    scene.clock.advance(10)
    poll(scene, swaps, 1)
    rows = list(read_journal(tmp_path / "w.jsonl"))
    assert [(row["version"], row["proven"]) for row in rows] == [(1, True), (2, False), (2, True)]
    assert rows[1]["why"] == "corrupt"


def test_a_download_that_is_corrupt_is_no_swap(scene, tmp_path):
    swaps = Swaps(tmp_path / "w.jsonl", "eu")
    poll(scene, swaps, 1)
    scene.publish()
    store = scene.world.store
    for shard in [stat.key for stat in store.list("run/shards/") if "-2-1/" in stat.key]:
        data = store.get(shard, max_bytes=1 << 30).data
        store.put(shard, data[:40] + bytes([data[40] ^ 4]) + data[41:])
    poll(scene, swaps, 1)
    assert scene.subscriber.error.kind == "corrupt"
    assert [(row["version"], row["proven"]) for row in read_journal(tmp_path / "w.jsonl")] == [(1, True)]
