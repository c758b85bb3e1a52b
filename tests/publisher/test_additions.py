"""Folds and snapshots made beside the publisher: right, optional, and never in its way."""

import threading
from dataclasses import replace

import pytest

from tests.publisher.checkpoints import make, step
from tests.publisher.world import SMALL, World
from weightsync.errors import Unavailable
from weightsync.format.keys import payload_name
from weightsync.format.operators import Boundary
from weightsync.format.versions import Form, Payload
from weightsync.publisher import additions, extra
from weightsync.publisher.additions import AdditionSettings
from weightsync.publisher.commit import Settings
from weightsync.publisher.extra import OutOfReach
from weightsync.publisher.gate import Gate
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.snapshots import SnapshotPolicy
from weightsync.replica import update as updating
from weightsync.replica.fetch import ShardSource
from weightsync.replica.past import PastLimits
from weightsync.replica.path import Path, find_path
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Faults

ROOMY = PastLimits(image_share=10.0)
NEVER = SnapshotPolicy(every=0)


def settings(*spans: int, snapshots: SnapshotPolicy = NEVER, shard_bytes: int = 4096) -> Settings:
    return replace(SMALL, shard_bytes=shard_bytes, additions=AdditionSettings(spans, snapshots, threads=2))


def publish(world: World, publisher: Publisher, count: int, weights=None):
    weights = weights or make()
    for _ in range(count):
        publisher.publish_checkpoint(world.checkpoint(weights))
        weights = step(weights, world._checkpoints)
    return weights


def payloads(world: World, version: int) -> list[Payload]:
    return world.catalog.payloads(world.catalog.manifest_of(version))


def forms(world: World, version: int) -> dict[int, Form]:
    return {payload.base_version: payload.form for payload in payloads(world, version)}


@pytest.fixture
def check(world, monkeypatch):
    def every_payload(world: World = world) -> None:
        """Each way into each version, from exactly its base, makes the version."""
        for ref in world.catalog.committed():
            record = world.catalog.manifest_of(ref.version)
            for payload in payloads(world, ref.version):
                with Replica(world.home / f"check-{ref.version}-{payload.base_version}", threads=1) as replica:
                    if payload.base is not None:
                        update(replica, world.catalog, world.catalog.manifest_of(payload.base_version), ShardSource(world.catalog))
                    path = Path(replica.version, ref, (payload,), (record,), payload.base)
                    with monkeypatch.context() as patch:
                        patch.setattr(updating, "find_path", lambda *_, path=path, **__: path)
                        update(replica, world.catalog, record, ShardSource(world.catalog))
                    assert replica.version == ref
                    assert replica.verify() == []

    return every_payload


def test_folds_of_eight(world, check):
    publisher = world.publisher(settings=settings(8), past=ROOMY)
    publish(world, publisher, 18)
    assert publisher.settle(30)
    assert forms(world, 8) == {7: Form.DELTA, 1: Form.FOLD}
    assert forms(world, 16) == {15: Form.DELTA, 8: Form.FOLD}
    assert forms(world, 17) == {16: Form.DELTA}
    check()
    path = find_path(world.catalog, world.catalog.manifest_of(1).ref, world.catalog.manifest_of(18))
    assert [payload.base_version for payload in path.steps] == [1, 8, 16, 17]
    record = world.catalog.manifest_of(8)
    fold = next(payload for payload in payloads(world, 8) if payload.form is Form.FOLD)
    assert 0 < fold.nbytes < sum(world.catalog.manifest_of(version).manifest.payload_bytes for version in range(2, 9))
    assert find_path(world.catalog, world.catalog.manifest_of(1).ref, record).steps == (fold,)


def test_without_older_versions_folds_are_skipped(world):
    publisher = world.publisher(settings=settings(8))
    publish(world, publisher, 9)
    assert publisher.settle(30)
    assert forms(world, 8) == {7: Form.DELTA}


def test_snapshots_beside(world, check):
    publisher = world.publisher(settings=settings(snapshots=SnapshotPolicy(every=3)), past=ROOMY)
    weights = make()
    for _ in range(7):
        weights = publish(world, publisher, 1, weights)
        publisher.settle(30)
    assert [version for version in range(1, 8) if 0 in forms(world, version)] == [1, 4, 7]
    assert forms(world, 4) == {3: Form.DELTA, 0: Form.SNAPSHOT}
    check()


def test_after_a_restart_the_cadence_goes_on(world):
    for _ in range(2):
        publisher = world.publisher(settings=settings(snapshots=SnapshotPolicy(every=4)), past=ROOMY)
        publish(world, publisher, 3, step(make(), world._checkpoints + 50))
        publisher.settle(30)
        publisher.close()
    assert [version for version in range(1, 7) if 0 in forms(world, version)] == [1, 5]


@pytest.mark.parametrize("collected", [False, True])
def test_a_snapshot_goes_on_after_a_restart(world, monkeypatch, check, collected):
    """The second process sends only what the first did not; where the collector was faster, a new one is made."""
    policy = settings(snapshots=SnapshotPolicy(every=3), shard_bytes=2048)
    real, sent = extra.ensure, []

    def dies(store, key, data, **options):
        if len(sent) == 2:
            raise OutOfReach("killed")
        sent.append(key)
        real(store, key, data, **options)

    monkeypatch.setattr(extra, "ensure", dies)
    first = world.publisher(settings=policy, past=ROOMY)
    weights = publish(world, first, 4)
    assert first.settle(30)
    first.close()
    assert forms(world, 4) == {3: Form.DELTA}
    assert len(sent) == 2
    again = []
    monkeypatch.setattr(extra, "ensure", lambda store, key, data, **options: (again.append(key), real(store, key, data, **options)))
    second = world.publisher(settings=policy, past=ROOMY)
    second.start()
    if collected:
        world.catalog.swap_boundary(Boundary("run", world.catalog.new_id(), marked={payload_name(4, 0, "1"): 1}), None)
    weights = publish(world, second, 1, weights)
    assert second.settle(30)
    if collected:
        assert forms(world, 4) == {3: Form.DELTA}
        weights = publish(world, second, 1, weights)
        assert second.settle(30)
        assert forms(world, 6)[0] is Form.SNAPSHOT
    else:
        assert forms(world, 4) == {3: Form.DELTA, 0: Form.SNAPSHOT}
        assert again
        assert not set(again) & set(sent)
        assert forms(world, 5) == {4: Form.DELTA}
        weights = publish(world, second, 2, weights)
        assert second.settle(30)
        assert forms(world, 7)[0] is Form.SNAPSHOT  # the cadence goes on from there
    check()


def test_the_base_may_move_on_meanwhile(world, monkeypatch, check):
    """Between the turns of a fold versions are published: the older chunks are recovered from what is kept."""
    publisher = world.publisher(settings=settings(8, shard_bytes=1 << 20), past=ROOMY)
    weights = publish(world, publisher, 7)
    gate, go_on, turns, held = publisher.additions.gate, threading.Semaphore(0), [], set()
    monkeypatch.setattr(extra, "_batches", lambda layout, threads: [[[chunk]] for chunk in layout.chunks])
    real = gate.turn

    def slow_turn():
        go_on.acquire()
        turns.append(1)
        held.add(publisher._replica.version)
        return real()

    monkeypatch.setattr(gate, "turn", slow_turn)
    for _ in range(6):
        weights = publish(world, publisher, 1, weights)
        for _ in range(3):
            go_on.release()
        while len(turns) % 3 == 0 and not publisher.settle(0.01) and len(turns) < 3 * len(world.versions()) - 21:
            pass
    for _ in range(1000):
        go_on.release()
    assert publisher.settle(30)
    assert len(held) > 3
    assert forms(world, 8) == {7: Form.DELTA, 1: Form.FOLD}
    check()


def test_a_fold_that_takes_too_long_is_given_up(world, monkeypatch):
    publisher = world.publisher(settings=settings(8), past=PastLimits(versions=8, image_share=10.0))
    weights = publish(world, publisher, 7)
    gate, go_on = publisher.additions.gate, threading.Event()
    real = gate.turn

    def slow_turn():
        go_on.wait(30)
        return real()

    monkeypatch.setattr(gate, "turn", slow_turn)
    publish(world, publisher, 4, weights)
    go_on.set()
    assert publisher.settle(30)
    assert forms(world, 8) == {7: Form.DELTA}
    assert world.versions() == list(range(1, 12))


def test_a_store_that_fails_costs_the_fold_only(world, monkeypatch):
    publisher = world.publisher(settings=settings(8), past=ROOMY)
    weights = publish(world, publisher, 7)
    monkeypatch.setattr(additions, "WAIT_S", 0.0)

    def refuse(*_args, **_options):
        raise Unavailable("down")

    monkeypatch.setattr(extra, "ensure", refuse)
    weights = publish(world, publisher, 1, weights)
    assert publisher.settle(30)
    assert forms(world, 8) == {7: Form.DELTA}
    monkeypatch.undo()
    publish(world, publisher, 8, weights)
    assert publisher.settle(30)
    assert forms(world, 16) == {15: Form.DELTA, 8: Form.FOLD}


def test_what_was_sent_is_not_sent_again(world, monkeypatch, check):
    publisher = world.publisher(settings=settings(snapshots=SnapshotPolicy(every=2), shard_bytes=2048), past=ROOMY)
    monkeypatch.setattr(additions, "WAIT_S", 0.0)
    real, calls, sent = extra.ensure, [], []

    def flaky(store, key, data, **options):
        calls.append(key)
        if len(calls) == 3:
            raise Unavailable("a hiccup")
        sent.append(key)
        real(store, key, data, **options)

    monkeypatch.setattr(extra, "ensure", flaky)
    publish(world, publisher, 3)
    assert publisher.settle(30)
    assert forms(world, 3) == {2: Form.DELTA, 0: Form.SNAPSHOT}
    assert len(calls) > 3
    assert len(sent) == len(set(sent))
    check()


def test_closing_does_not_wait(world, monkeypatch):
    publisher = world.publisher(settings=settings(8), past=ROOMY)
    weights = publish(world, publisher, 7)
    started = threading.Event()
    real = publisher.additions.gate.turn

    def turn():
        started.set()
        return real()

    monkeypatch.setattr(publisher.additions.gate, "turn", turn)
    monkeypatch.setattr(extra, "_batches", lambda layout, threads: [[[chunk]] for chunk in layout.chunks] * 1000)
    publish(world, publisher, 1, weights)
    assert started.wait(30)
    publisher.close()
    assert forms(world, 8) == {7: Form.DELTA}
    assert world.publisher().start() == 8


def test_with_a_store_that_loses_replies(tmp_path, check, monkeypatch):
    monkeypatch.setattr(additions, "WAIT_S", 0.0)
    world = World(tmp_path / "lossy", MemoryStore("lossy", faults=Faults(seed=3, lost_applied=0.05, lost_dropped=0.05, unavailable=0.05)))
    try:
        publisher = world.publisher(settings=settings(4, snapshots=SnapshotPolicy(every=4)), past=ROOMY)
        weights = make()
        for _ in range(9):
            try:
                publisher.publish_checkpoint(world.checkpoint(weights))
            except Unavailable:
                continue
            weights = step(weights, world._checkpoints)
        assert publisher.settle(60)
        world.store.set_faults(Faults())
        assert any(len(payloads(world, version)) > 1 for version in world.versions())
        check(world)
    finally:
        world.close()


def test_publishing_waits_for_one_turn_only():
    gate, order, inside, release = Gate(), [], threading.Event(), threading.Event()

    def turns():
        for number in range(3):
            with gate.turn():
                order.append(f"turn {number}")
                inside.set()
                release.wait(10)

    thread = threading.Thread(target=turns)
    thread.start()
    inside.wait(10)
    threading.Timer(0.05, release.set).start()
    with gate.publishing():
        order.append("publish")
        seen = list(order)
    assert seen[-1] == "publish"
    thread.join(10)
    assert len(order) == 4
    gate.close()
    with gate.turn() as going:
        assert not going


@pytest.mark.parametrize("spans", [(2,), (3, 6)])
def test_other_spans_and_levels(world, spans, check):
    publisher = world.publisher(settings=settings(*spans), past=ROOMY)
    publish(world, publisher, 13)
    assert publisher.settle(30)
    made = {(base, version) for version in range(2, 14) for base, form in forms(world, version).items() if form is Form.FOLD}
    assert {(base, base + span) for span in spans for base in range(span, 13 - span, span)} <= made
    check()
