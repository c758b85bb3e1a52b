import itertools
import os
import shutil
from dataclasses import replace

import pytest

from tests.publisher.checkpoints import make, step, tree
from tests.publisher.world import SMALL
from weightsync.clock import SystemClock
from weightsync.errors import Corrupt, Fenced, Invalid, NotFound, OutcomeUnknown, Unavailable
from weightsync.format.versions import Form
from weightsync.publisher import diff
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Fault


def chain(count, share=0.02):
    """Successive weights."""
    found = [make()]
    for number in range(1, count):
        found.append(step(found[-1], number, share))
    return found


def test_versions_restore_byte_for_byte_with_config_and_tokenizer(world):
    publisher = world.publisher()
    paths = [world.checkpoint(weights) for weights in chain(4)]
    for number, path in enumerate(paths):
        published = publisher.publish_checkpoint(path, step=10 * number, note="a note")
        assert (published.version, published.step) == (number + 1, 10 * number)
        assert published.form is (Form.DELTA if number else Form.SNAPSHOT)
    for number, path in enumerate(paths):
        assert world.restored(number + 1) == tree(path)
    record = world.catalog.manifest_of(3)
    assert (record.manifest.step, record.manifest.note, record.manifest.parent.version) == (20, "a note", 2)


@pytest.mark.parametrize("shards", [1, 5])
def test_checkpoints_of_one_file_or_several_without_an_index(world, shards):
    path = world.checkpoint(make(), shards=shards, index=False)
    world.publisher().publish_checkpoint(path)
    assert world.restored(1) == tree(path)


def test_the_input_is_never_written_to(world):
    publisher, paths = world.publisher(), [world.checkpoint(weights) for weights in chain(2)]
    before = [(tree(path), {p.name: p.stat().st_mtime_ns for p in path.rglob("*")}) for path in paths]
    for path in paths:
        publisher.publish_checkpoint(path)
    assert before == [(tree(path), {p.name: p.stat().st_mtime_ns for p in path.rglob("*")}) for path in paths]


def test_every_byte_in_the_store_is_counted_once(world):
    publisher = world.publisher()
    publisher.start()
    before = sum(stat.size_bytes for stat in world.store.list(""))
    head = world.store.stat(world.catalog.keys.head("latest")).size_bytes
    for weights in chain(3):
        published = publisher.publish_checkpoint(world.checkpoint(weights))
        after = sum(stat.size_bytes for stat in world.store.list(""))
        now = world.store.stat(world.catalog.keys.head("latest")).size_bytes
        added = after - before - (now - head)
        assert published.total_bytes - published.uploaded["head"] == added
        assert published.uploaded["head"] == now
        assert published.uploaded["shards"] == published.payload_bytes
        before, head = after, now
    assert set(published.uploaded) == {"shards", "records", "digests", "head"}  # layout and files stand already


def test_a_version_without_changes_costs_its_records_and_no_shard(world):
    publisher, path = world.publisher(), world.checkpoint(make())
    publisher.publish_checkpoint(path)
    published = publisher.publish_checkpoint(path)
    assert (published.version, published.changed_lanes, published.shards, published.payload_bytes) == (2, 0, 0, 0)
    assert set(published.uploaded) == {"records", "digests", "head"}
    assert world.restored(2) == tree(path)


def test_changes_of_several_steps_go_out_with_one_publish(world):
    publisher, weights = world.publisher(), make()
    publisher.publish_checkpoint(world.checkpoint(weights))
    for number, name in enumerate(("model.embed", "model.router", "model.scales")):
        weights = step(weights, number, 0.1, names=(name,))
    path = world.checkpoint(weights)
    publisher.publish_checkpoint(path)
    assert world.restored(2) == tree(path)


@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.2, 0.23, 0.5, 1])
def test_any_share_of_changes_is_exact_and_never_larger_than_the_weights(world, share):
    publisher, weights = world.publisher(), make(size=20_000)
    publisher.publish_checkpoint(world.checkpoint(weights))
    path = world.checkpoint(step(weights, 1, share))
    published = publisher.publish_checkpoint(path)
    assert world.restored(2) == tree(path)
    assert published.payload_bytes <= published.checkpoint_bytes * 1.01 + 64 * 200


def test_scales_alone_can_change(world):
    publisher, weights = world.publisher(), make()
    publisher.publish_checkpoint(world.checkpoint(weights))
    path = world.checkpoint(step(weights, 1, 0.5, names=("model.scales",)))
    published = publisher.publish_checkpoint(path)
    assert published.changed_lanes <= 50
    assert world.restored(2) == tree(path)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda w: {**w, "model.router": ("F32", (20, 80), w["model.router"][2])}, "retyped"),
        (lambda w: {**w, "model.router": ("I32", (40, 40), w["model.router"][2])}, "retyped"),
        (lambda w: {**w, "new": ("U8", (3,), b"abc")}, "added"),
        (lambda w: {n: t for n, t in w.items() if n != "scalar"}, "removed"),
    ],
    ids=["shape", "dtype", "added", "removed"],
)
def test_a_new_layout_is_a_snapshot_that_says_why_and_deltas_follow(world, change, word):
    publisher, weights = world.publisher(), make()
    publisher.publish_checkpoint(world.checkpoint(weights))
    changed = change(weights)
    path, after = world.checkpoint(changed), world.checkpoint(step(changed, 3))
    published = publisher.publish_checkpoint(path)
    assert published.form is Form.SNAPSHOT
    assert any(word in note and "new layout" in note for note in published.notes)
    assert publisher.publish_checkpoint(after).form is Form.DELTA
    assert world.restored(2) == tree(path)
    assert world.restored(3) == tree(after)


def test_an_upload_that_fails_changes_nothing_and_the_next_is_made_on_what_is_published(world):
    publisher, paths = world.publisher(), [world.checkpoint(weights) for weights in chain(6)]
    for path in paths[:2]:
        publisher.publish_checkpoint(path)
    store = world.store
    for _ in range(40):
        store.inject(Fault.UNAVAILABLE, operation="create", key="/shards/")
    with pytest.raises(Unavailable):
        publisher.publish_checkpoint(paths[2])
    assert world.versions() == [1, 2]
    store._chooser.planned.clear()
    for path in paths[3:]:
        publisher.publish_checkpoint(path)
    versions = world.versions()  # the number of the failed one may be void
    assert len(versions) == 5
    assert [world.catalog.manifest_of(v).manifest.parent.version for v in versions[1:]] == versions[:-1]
    assert [world.restored(v) for v in versions[2:]] == [tree(path) for path in paths[3:]]


def test_nobody_writes_to_the_base_while_it_is_taken_back(world, monkeypatch):
    from weightsync.replica.transition import Transition

    monkeypatch.setattr(diff, "GROUP_BYTES", 1)
    publisher = world.publisher(settings=replace(SMALL, threads=4, shard_bytes=64))
    weights = make(size=20_000)
    publisher.publish_checkpoint(world.checkpoint(weights))
    at_work, seen, honest, abort = [], [], Transition.apply, Transition.abort

    def apply(self, *arguments):
        at_work.append(1)
        SystemClock().sleep_s(0.01)
        try:
            honest(self, *arguments)
        finally:
            at_work.pop()

    def watched(self):
        seen.append(len(at_work))
        abort(self)

    monkeypatch.setattr(Transition, "apply", apply)
    monkeypatch.setattr(Transition, "abort", watched)
    for number in range(2):
        for _ in range(300):
            world.store.inject(Fault.UNAVAILABLE, operation="create", key="/shards/")
        with pytest.raises(Unavailable):
            publisher.publish_checkpoint(world.checkpoint(step(weights, number, 0.3)))
        world.store._chooser.planned.clear()
    assert seen
    assert set(seen) == {0}
    path = world.checkpoint(step(weights, 9))
    assert publisher.publish_checkpoint(path).form is Form.DELTA
    assert world.restored(world.versions()[-1]) == tree(path)


@pytest.mark.parametrize("key", ["/manifest", "/payloads/", "/digests/", "/log/", "/head"])
def test_any_other_upload_that_fails_changes_nothing_either(world, key):
    publisher, paths = world.publisher(), [world.checkpoint(weights) for weights in chain(3)]
    publisher.publish_checkpoint(paths[0])
    for _ in range(60):
        world.store.inject(Fault.UNAVAILABLE, operation="swap" if key == "/head" else "create", key=key)
    with pytest.raises(Unavailable):
        publisher.publish_checkpoint(paths[1])
    assert world.versions() == [1]
    world.store._chooser.planned.clear()
    published = publisher.publish_checkpoint(paths[2])
    assert world.restored(published.version) == tree(paths[2])
    assert world.catalog.manifest_of(published.version).manifest.parent.version == 1


@pytest.mark.parametrize("applied", [True, False])
def test_a_commit_without_an_answer_is_settled_before_the_next(world, applied, monkeypatch):
    publisher, paths = world.publisher(), [world.checkpoint(weights) for weights in chain(3)]
    publisher.publish_checkpoint(paths[0])
    world.store.inject(Fault.LOST_APPLIED if applied else Fault.LOST_DROPPED, operation="swap", key="/head")
    for _ in range(60):  # and then the store is gone
        world.store.inject(Fault.UNAVAILABLE, operation="get", key="/head")
    with pytest.raises(OutcomeUnknown):
        publisher.publish_checkpoint(paths[1])
    world.store._chooser.planned.clear()
    published = publisher.publish_checkpoint(paths[2])
    parent = world.catalog.manifest_of(published.version).manifest.parent
    assert (len(world.versions()), parent.version) == ((3, 2) if applied else (2, 1))
    assert world.restored(published.version) == tree(paths[2])


def test_a_bit_that_flips_between_encoding_and_upload_is_caught_before_the_head_moves(world, monkeypatch):
    publisher, paths = world.publisher(), [world.checkpoint(weights) for weights in chain(3)]
    publisher.publish_checkpoint(paths[0])
    honest, calls = diff.encode_delta, itertools.count()

    def flipping(*arguments, **options):
        encoded = honest(*arguments, **options)
        if encoded.changed and next(calls) == 3:
            return encoded._replace(frame=encoded.frame[:-1] + bytes([encoded.frame[-1] ^ 0x10]))
        return encoded

    with monkeypatch.context() as patch:
        patch.setattr(diff, "encode_delta", flipping)
        with pytest.raises(Corrupt):
            publisher.publish_checkpoint(paths[1])
    assert world.versions() == [1]
    published = publisher.publish_checkpoint(paths[2])
    assert published.form is Form.DELTA
    assert world.restored(2) == tree(paths[2])


def test_an_input_that_changes_while_it_is_read_is_not_published(world, monkeypatch):
    publisher, paths = world.publisher(), [world.checkpoint(weights, shards=1) for weights in chain(3)]
    publisher.publish_checkpoint(paths[0])
    honest, touched = diff.leaf_digest, []

    def meddling(kind, data):
        if not touched:
            touched.append(paths[1] / "model.safetensors")
            with touched[0].open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\x77")
            os.utime(touched[0], ns=(5, 5))
        return honest(kind, data)

    with monkeypatch.context() as patch:
        patch.setattr(diff, "leaf_digest", meddling)
        with pytest.raises(Invalid, match=r"model\.safetensors.*mix two states"):
            publisher.publish_checkpoint(paths[1])
    assert world.versions() == [1]
    publisher.publish_checkpoint(paths[2])
    assert world.restored(2) == tree(paths[2])


def test_a_bad_input_leaves_the_publisher_at_work_in_place(world):
    first, good = world.publisher("first"), world.checkpoint(make())
    first.publish_checkpoint(good)
    bad = world.checkpoint(make())
    (bad / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(NotFound, match="model-00002"):
        world.publisher("second").publish_checkpoint(bad)
    assert first.publish_checkpoint(good).version == 2


def test_a_restart_adopts_the_committed_version_from_the_local_base(world):
    paths = [world.checkpoint(weights) for weights in chain(3)]
    first = world.publisher()
    for path in paths[:2]:
        first.publish_checkpoint(path)
    first.close()
    reads = len([op for op in world.store.log if "/shards/" in op.key and op.name == "read_into"])
    second = world.publisher()
    assert second.start() == 2
    published = second.publish_checkpoint(paths[2])
    assert (published.version, published.form) == (3, Form.DELTA)
    assert len([op for op in world.store.log if "/shards/" in op.key and op.name == "read_into"]) == reads
    assert world.restored(3) == tree(paths[2])


def test_a_trainer_that_restarts_from_an_older_step_makes_new_versions_on_the_newest(world):
    paths = [world.checkpoint(weights) for weights in chain(4)]
    first = world.publisher()
    for number, path in enumerate(paths):
        first.publish_checkpoint(path, step=number)
    first.close()
    second = world.publisher()
    assert second.start() == 4
    assert second.step == 3
    assert second.publish_checkpoint(paths[1], step=1).version == 5
    assert second.publish_checkpoint(paths[2], step=2).version == 6
    assert (world.restored(5), world.restored(6)) == (tree(paths[1]), tree(paths[2]))


@pytest.mark.parametrize("damage", ["lost", "flipped", "other host"])
def test_a_base_that_is_not_the_committed_version_is_rebuilt_from_the_store(world, damage):
    paths = [world.checkpoint(weights) for weights in chain(3)]
    first = world.publisher()
    for path in paths[:2]:
        first.publish_checkpoint(path)
    first.close()
    base = world.home / "base-trainer"
    if damage == "lost":
        shutil.rmtree(base)
    elif damage == "flipped":
        image = next(base.glob("image-*"))
        data = bytearray(image.read_bytes())
        data[len(data) // 2] ^= 1
        image.write_bytes(data)
    second = world.publisher("elsewhere" if damage == "other host" else "trainer")
    published = second.publish_checkpoint(paths[2])
    assert (published.version, published.form) == (3, Form.DELTA)
    assert world.restored(3) == tree(paths[2])


def test_a_base_that_the_store_cannot_give_back_means_a_snapshot_that_says_so(world):
    paths = [world.checkpoint(weights) for weights in chain(3)]
    first = world.publisher()
    for path in paths[:2]:
        first.publish_checkpoint(path)
    for stat in list(world.store.list("run/shards/1-2-1/")):
        world.store.delete(stat.key)
    published = world.publisher("elsewhere").publish_checkpoint(paths[2])
    assert published.form is Form.SNAPSHOT
    assert any("version 2 could not be rebuilt" in note for note in published.notes)
    assert world.restored(3) == tree(paths[2])
    assert world.catalog.manifest_of(3).manifest.parent.version == 2


def test_a_snapshot_can_be_asked_for(world):
    publisher, paths = world.publisher(), [world.checkpoint(weights) for weights in chain(3)]
    publisher.publish_checkpoint(paths[0])
    assert publisher.publish_checkpoint(paths[1], snapshot=True).form is Form.SNAPSHOT
    assert publisher.publish_checkpoint(paths[2]).form is Form.DELTA
    assert [world.restored(v) for v in (1, 2, 3)] == [tree(path) for path in paths]


def test_a_run_keeps_the_chunk_size_of_its_first_version(world):
    first = world.publisher()
    first.publish_checkpoint(world.checkpoint(make()))
    first.close()
    other = world.publisher("elsewhere", replace(SMALL, chunking=diff_chunking(2048)))
    assert other.publish_checkpoint(world.checkpoint(step(make(), 1))).form is Form.DELTA


def diff_chunking(lanes):
    return replace(SMALL.chunking, lanes=lanes)


def test_an_older_publisher_is_fenced_for_good_and_nothing_of_it_is_committed(world):
    paths = [world.checkpoint(weights) for weights in chain(4)]
    old, new = world.publisher("old"), world.publisher("new")
    old.publish_checkpoint(paths[0])
    new.publish_checkpoint(paths[1])
    for _ in range(2):
        with pytest.raises(Fenced, match="new"):
            old.publish_checkpoint(paths[2])
    assert new.publish_checkpoint(paths[3]).version == 3
    assert [world.restored(v) for v in (1, 2, 3)] == [tree(paths[n]) for n in (0, 1, 3)]


def test_a_rollback_fences_and_the_next_publisher_goes_on_from_there(world):
    paths = [world.checkpoint(weights) for weights in chain(4)]
    first = world.publisher()
    for path in paths[:3]:
        first.publish_checkpoint(path, step=1)
    world.catalog.move("latest", 1, expected_sequence=None, who="operator", why="bad weights")
    with pytest.raises(Fenced):
        first.publish_checkpoint(paths[3])
    first.close()
    published = world.publisher().publish_checkpoint(paths[3], step=2)
    assert published.version == 4
    assert world.catalog.manifest_of(4).manifest.parent.version == 1
    assert world.restored(4) == tree(paths[3])


def test_a_number_that_another_took_is_void_and_the_shards_go_up_again(world):
    publisher, paths = world.publisher(), [world.checkpoint(weights) for weights in chain(2)]
    publisher.publish_checkpoint(paths[0])
    honest = publisher._catalog.plan_commit

    def late(claim, new):
        plan = honest(claim, new)
        if new.number == 2:  # a fenced publisher's manifest arrives at the last moment
            world.store.create(world.catalog.keys.manifest(2), b"of another")
        return plan

    publisher._catalog.plan_commit = late
    published = publisher.publish_checkpoint(paths[1])
    assert published.version == 3
    assert world.versions() == [1, 3]
    assert world.restored(3) == tree(paths[1])


def test_what_was_torn_under_its_own_digest_is_written_again(world):
    publisher, path = world.publisher(), world.checkpoint(make())
    for key in ("/layouts/", "/files/", "/digests/", "/shards/"):
        world.store.inject(Fault.TORN, operation="create", key=key)
    published = publisher.publish_checkpoint(path)
    assert published.version == 1
    assert world.restored(1) == tree(path)


def test_a_full_disk_under_the_base_is_an_error_and_nothing_is_lost(world, monkeypatch):
    from weightsync.replica import journal

    publisher, paths = world.publisher(), [world.checkpoint(weights) for weights in chain(3)]
    publisher.publish_checkpoint(paths[0])
    with monkeypatch.context() as patch:

        def full(*arguments):
            raise OSError(28, "No space left on device")

        patch.setattr(journal.os, "writev", full)
        with pytest.raises(Unavailable, match=r"[Nn]o space"):
            publisher.publish_checkpoint(paths[1])
    assert world.versions() == [1]
    assert publisher.publish_checkpoint(paths[2]).form is Form.DELTA
    assert world.restored(2) == tree(paths[2])


def test_a_store_that_ignores_conditions_is_refused(tmp_path):
    from tests.publisher.world import World

    world = World(tmp_path, MemoryStore("careless", conditional="none"))
    with pytest.raises(Exception, match="does not honour conditional writes") as caught:
        world.publisher().publish_checkpoint(world.checkpoint(make()))
    assert caught.value.kind == "unsupported"
    world.close()


def test_heads_can_expire(world):
    world.publisher(settings=replace(SMALL, expires_s=60.0)).publish_checkpoint(world.checkpoint(make()))
    head = world.catalog.head()
    assert 0 < head.expires_ms / 1000 - SystemClock().now_s() <= 60


def test_many_small_tensors_travel(world):
    weights = {f"layer.{n:05}.bias": ("BF16", (3,), bytes([n % 256, 60, 1, 60, 2, 60])) for n in range(3000)}
    publisher = world.publisher()
    publisher.publish_checkpoint(world.checkpoint(weights))
    weights["layer.01234.bias"] = ("BF16", (3,), b"\x01\x02\x03\x04\x05\x06")
    path = world.checkpoint(weights)
    published = publisher.publish_checkpoint(path)
    assert (published.changed_lanes, published.shards) == (3, 1)
    assert world.restored(2) == tree(path)


def test_weights_that_share_no_name_are_refused_before_the_claim_and_sent_where_they_are_meant(world):
    publisher, weights = world.publisher(), make()
    publisher.publish_checkpoint(world.checkpoint(weights))
    path = world.checkpoint({f"other.{name}": tensor for name, tensor in weights.items()})
    for name in ("trainer", "another"):
        refused = publisher if name == "trainer" else world.publisher(name)
        with pytest.raises(Invalid, match=r"another model's.*version 1 of run 'run'"):
            refused.publish_checkpoint(path)
    assert publisher.publish_checkpoint(world.checkpoint(step(weights, 1))).version == 2  # not fenced
    meant = world.publisher("meant", replace(SMALL, replace_model=True))
    assert meant.publish_checkpoint(path).form is Form.SNAPSHOT
    assert world.restored(3) == tree(path)
