import shutil
import threading

import pytest

from tests.publisher.checkpoints import make, step, tree
from weightsync.catalog import Catalog
from weightsync.errors import Compacted, Corrupt, NotFound, Unavailable, WeightsyncError
from weightsync.format.files import FileTable
from weightsync.publisher.checkpoint import open_checkpoint
from weightsync.publisher.source import Chunking
from weightsync.store.memory_faults import Fault
from weightsync.subscriber.outputs import DirectoryOutput
from weightsync.testing.clock import ManualClock


def publish(world, count, publisher=None):
    publisher, weights, paths = publisher or world.publisher(), make(), []
    for number in range(count):
        paths.append(world.checkpoint(weights))
        publisher.publish_checkpoint(paths[-1])
        weights = step(weights, number)
    return paths


def holds(subscriber, path):
    """Whether the image is the checkpoint's tensors, every byte."""
    source = open_checkpoint(path, Chunking(1024))
    image, buffer = subscriber._replica.image, memoryview(bytearray(1 << 20))
    same = image.layout.digest == source.layout.digest and all(
        image.chunk(chunk.number) == source.read(chunk, buffer) for chunk in source.layout.chunks
    )
    source.close()
    return same


def test_it_follows_version_by_version(world):
    publisher, subscriber, weights = world.publisher(), world.subscriber(), make()
    for number in range(1, 4):
        path = world.checkpoint(weights)
        publisher.publish_checkpoint(path)
        found = subscriber.step()
        assert (found.version.version, found.changed, found.stale) == (number, True, False)
        assert holds(subscriber, path)
        assert not subscriber.step().changed
        weights = step(weights, number)


def test_a_late_one_takes_the_whole_path_and_a_restart_fetches_nothing(world):
    paths = publish(world, 4)
    subscriber = world.subscriber()
    assert len(subscriber.step().update.path.steps) == 4
    subscriber.close()
    again = world.subscriber()
    before = len(world.store.log)
    found = again.step()
    assert (found.version.version, found.update) == (4, None)
    assert not any("/shards/" in op.key for op in world.store.log[before:])
    assert holds(again, paths[3])


def test_an_unchanged_head_costs_one_conditional_read(world):
    publish(world, 1)
    subscriber = world.subscriber()
    subscriber.step()
    before = len(world.store.log)
    subscriber.step()
    assert [op.name for op in world.store.log[before:]] == ["get_if_changed"]


def test_before_the_first_version_there_is_nothing_and_without_a_run_an_error(world):
    subscriber = world.subscriber()
    with pytest.raises(NotFound, match="'run' does not exist"):
        subscriber.step()
    world.publisher().start()
    assert subscriber.step().version is None
    with pytest.raises(NotFound, match="no version yet"):
        subscriber.once()
    assert world.subscriber("other", channel="serving").step().version is None


def test_a_promotion_and_a_rollback_are_followed(world):
    paths = publish(world, 4)
    subscriber = world.subscriber(channel="serving")
    for version in (2, 4, 1, 3):
        world.catalog.move("serving", version, expected_sequence=None, who="operator", why="")
        assert subscriber.step().version.version == version
        assert holds(subscriber, paths[version - 1])


def test_a_new_layout_is_followed(world):
    publisher, subscriber, weights = world.publisher(), world.subscriber(), make()
    publish(world, 2, publisher)
    subscriber.step()
    path = world.checkpoint({**weights, "more": ("U8", (5,), b"12345")})
    publisher.publish_checkpoint(path)
    subscriber.step()
    assert holds(subscriber, path)


def snapshot_of(store):
    return {stat.key: store.get(stat.key, max_bytes=1 << 30).data for stat in store.list("")}


def roll_back(store, state):
    for stat in list(store.list("")):
        store.delete(stat.key)
    for key, data in state.items():
        store.put(key, data)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_store_restored_from_a_backup_is_refused_and_the_version_served_on(world, restarted):
    publisher, paths = world.publisher(), []
    paths += publish(world, 1, publisher)
    backup = snapshot_of(world.store)
    weights = step(make(), 7)
    path = world.checkpoint(weights)
    publisher.publish_checkpoint(path)
    subscriber = world.subscriber()
    subscriber.step()
    roll_back(world.store, backup)
    if restarted:
        subscriber.close()
        subscriber = world.subscriber()
    for _ in range(3):
        with pytest.raises(Corrupt, match="went back from sequence"):
            subscriber.step()
    assert subscriber.version.version == 2
    assert holds(subscriber, path)


def test_a_store_that_was_emptied_is_refused(world):
    publish(world, 1)
    subscriber = world.subscriber()
    subscriber.step()
    roll_back(world.store, {})
    with pytest.raises(WeightsyncError):
        subscriber.step()
    subscriber.close()
    again = world.subscriber()
    with pytest.raises(Corrupt, match="is gone"):
        again.step()
    assert again.version.version == 1


@pytest.mark.parametrize("key", ["/head", "/manifest", "/payloads/", "/shards/", "/digests/", "/layouts/"])
def test_damage_is_refused_served_over_and_mended(world, key):
    publisher, subscriber = world.publisher(), world.subscriber()
    paths = publish(world, 1, publisher)
    subscriber.step()
    path = world.checkpoint({**step(make(), 1), **({"x": ("U8", (1,), b"x")} if key == "/layouts/" else {})})
    before = set(snapshot_of(world.store))
    publisher.publish_checkpoint(path)
    victims = [k for k in snapshot_of(world.store) if key in k and (k not in before or key == "/head")]
    good = {k: world.store.get(k, max_bytes=1 << 30).data for k in victims}
    for victim, data in good.items():
        world.store.put(victim, data[:40] + bytes([data[40] ^ 4]) + data[41:])
    for _ in range(2):
        with pytest.raises((Corrupt, Unavailable, Compacted)):
            subscriber.step()
        assert subscriber.error is not None
        assert subscriber.version.version == 1
        assert holds(subscriber, paths[0])
    for victim, data in good.items():
        world.store.put(victim, data)
    assert subscriber.step().version.version == 2
    assert subscriber.error is None
    assert holds(subscriber, path)


def test_a_shard_that_is_not_visible_yet_is_waited_for(world):
    publisher, subscriber = world.publisher(), world.subscriber()
    publish(world, 1, publisher)
    subscriber.step()
    path = world.checkpoint(step(make(), 1))
    publisher.publish_checkpoint(path)
    shard = next(stat.key for stat in world.store.list("run/shards/") if "-2-1/" in stat.key)
    data = world.store.get(shard, max_bytes=1 << 30).data
    world.store.delete(shard)
    with pytest.raises(Unavailable, match="shard"):
        subscriber.step()
    assert subscriber.version.version == 1
    world.store.create(shard, data)
    assert subscriber.step().version.version == 2
    assert holds(subscriber, path)


def test_an_image_flipped_at_rest_is_noticed_at_the_start_and_made_again(world):
    paths = publish(world, 3)
    subscriber = world.subscriber()
    subscriber.step()
    subscriber.close()
    image = next((world.home / "image-host").glob("image-*"))
    data = bytearray(image.read_bytes())
    data[len(data) // 3] ^= 64
    image.write_bytes(data)
    again = world.subscriber()
    assert again.version is None
    again.step()
    assert holds(again, paths[2])


def test_an_expired_head_is_stale_and_nothing_newer_is_accepted_until_it_is_renewed(world):
    clock = ManualClock()
    catalog = Catalog(world.store, "run", clock=clock)
    paths = publish(world, 2)
    catalog.move("serving", 1, expected_sequence=0, who="op", why="", expires_ms=int((clock.now_s() + 60) * 1000))
    subscriber = world.subscriber(channel="serving", catalog=catalog)
    assert not subscriber.step().stale
    clock.advance(61)
    assert subscriber.step().stale
    with pytest.raises(Unavailable, match="expired"):
        subscriber.once()
    catalog.move("serving", 2, expected_sequence=None, who="op", why="", expires_ms=int((clock.now_s() - 1) * 1000))
    found = subscriber.step()
    assert (found.stale, found.version.version) == (True, 1)
    assert holds(subscriber, paths[0])
    catalog.renew("serving", int((clock.now_s() + 60) * 1000))
    found = subscriber.step()
    assert (found.stale, found.version.version) == (False, 2)
    assert holds(subscriber, paths[1])


def test_running_survives_an_outage_and_stops_when_told(world, caplog):
    publisher, subscriber, stop = world.publisher(), world.subscriber(), threading.Event()
    seen = []

    def on_step(found):
        seen.append(found.version.version if found.version else 0)
        if seen[-1] == 2:
            stop.set()

    publish(world, 1, publisher)
    for _ in range(3):
        world.store.inject(Fault.UNAVAILABLE, operation="get", key="/head")
    thread = threading.Thread(target=subscriber.run, args=(stop,), kwargs={"interval_s": 0.01, "on_step": on_step})
    thread.start()
    publisher.publish_checkpoint(world.checkpoint(step(make(), 1)))
    thread.join(30)
    assert not thread.is_alive()
    assert seen[-1] == 2


def test_outputs_follow_the_replica_and_catch_up_after_a_failure(world, monkeypatch):
    from weightsync.subscriber import outputs

    publisher, out = world.publisher(), DirectoryOutput(world.home / "out")
    subscriber = world.subscriber(outputs=(out,))
    paths = publish(world, 1, publisher)
    assert subscriber.step().delivered == 1
    assert tree(world.home / "out" / "current") == tree(paths[0])
    path = world.checkpoint(step(make(), 1))
    publisher.publish_checkpoint(path)
    with monkeypatch.context() as patch:

        def full(*arguments, **options):
            raise OSError(28, "No space left on device")

        patch.setattr(outputs, "restore", full)
        with pytest.raises(Unavailable, match=r"[Nn]o space"):
            subscriber.step()
    assert subscriber.version.version == 2
    assert tree(world.home / "out" / "current") == tree(paths[0])
    found = subscriber.step()
    assert (found.update, found.delivered) == (None, 1)
    assert tree(world.home / "out" / "current") == tree(path)


def test_an_output_lost_while_down_is_written_again(world):
    paths = publish(world, 1)
    subscriber = world.subscriber(outputs=(DirectoryOutput(world.home / "out"),))
    subscriber.step()
    subscriber.close()
    shutil.rmtree(world.home / "out")
    again = world.subscriber(outputs=(DirectoryOutput(world.home / "out"),))
    assert again.step().delivered == 1
    assert tree(world.home / "out" / "current") == tree(paths[0])


def test_a_state_dict_comes_out_as_a_loadable_file_with_both_names_of_a_tie(world):
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    from safetensors.torch import load_file

    from weightsync.publisher.live import LivePublisher

    embed = torch.randn(20, 30).to(torch.bfloat16)
    state = {"model.embed": embed, "lm_head": embed, "norm": torch.randn(30), "steps": np.int64(5)}
    with LivePublisher(world.publisher()) as live:
        live.publish(1, state).result(30)
        embed[3, 4] += 1
        live.publish(2, state, files={"config.json": b"{}"}).result(30)
    subscriber = world.subscriber(outputs=(DirectoryOutput(world.home / "out"),))
    subscriber.step()
    loaded = load_file(world.home / "out" / "current" / "model.safetensors")
    assert set(loaded) == set(state)
    assert torch.equal(loaded["lm_head"], embed)
    assert torch.equal(loaded["model.embed"], embed)
    assert world.catalog.file_table(world.catalog.manifest_of(2).manifest.files) != FileTable()
