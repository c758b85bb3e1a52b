import pytest

from tests.publisher.checkpoints import make, step, tree, write
from weightsync import wiring
from weightsync.catalog.open import open_catalog
from weightsync.config import load
from weightsync.errors import Conflict, Invalid
from weightsync.store.open import open_store
from weightsync.wiring import images, open_publisher, open_subscriber


@pytest.fixture
def settings(tmp_path):
    return load(store=f"file://{tmp_path}/store", run="run", cache=tmp_path / "cache")


def test_a_publisher_and_two_subscribers_from_settings(settings, tmp_path):
    store = open_store(settings.store)
    with (
        open_publisher(settings, store, who="trainer", model="m") as publisher,
        open_subscriber(settings, store, out=tmp_path / "out") as one,
        open_subscriber(settings, store, channel="serving") as two,
    ):
        path = write(tmp_path / "step-1", make())
        publisher.publish_checkpoint(path)
        assert one.once().version.version == 1
        assert two.step().version is None
        open_catalog(settings, store).move("serving", 1, expected_sequence=0, who="op", why="")
        assert two.once().version.version == 1
        changed = write(tmp_path / "step-2", step(make(), 1))
        publisher.publish_checkpoint(changed)
        assert one.once().version.version == 2
        assert tree(tmp_path / "out" / "current") == tree(changed)
        assert open_catalog(settings, store).run().model == "m"


def test_objects_fetched_once_are_kept_for_a_lost_image(settings, tmp_path, monkeypatch):
    store = open_store(settings.store)
    with open_publisher(settings, store, who="trainer") as publisher:
        publisher.publish_checkpoint(write(tmp_path / "step-1", make()))
    places = [tmp_path / "images-1", tmp_path / "images-2"]
    for place, cached in zip(places, (False, True), strict=True):
        again = load(store=settings.store, run="run", cache=settings.cache, images=place)
        with open_subscriber(again, store) as subscriber:
            update = subscriber.once().update
            assert (update.bytes_cached > 0, update.bytes_fetched > 0) == (cached, not cached)


def test_the_same_place_is_not_used_twice_at_once(settings, tmp_path):
    store = open_store(settings.store)
    with open_publisher(settings, store, who="a"), pytest.raises(Conflict, match="in use"):
        open_publisher(settings, store, who="b")
    with open_subscriber(settings, store, out=tmp_path / "out"):
        with pytest.raises(Conflict):
            open_subscriber(settings, store)
        with pytest.raises(Conflict, match="another process"):
            open_subscriber(settings, store, channel="serving", out=tmp_path / "out")
    open_subscriber(settings, store, out=tmp_path / "out").close()


def test_images_are_in_shared_memory_where_there_is_enough(settings, tmp_path, monkeypatch):
    bare = settings.model_copy(update={"images": None})
    monkeypatch.setattr(wiring, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(wiring, "LEAST_SHARED_BYTES", 1)
    assert images(bare).parent == tmp_path
    monkeypatch.setattr(wiring, "LEAST_SHARED_BYTES", 1 << 62)
    assert images(bare) == settings.cache / "images"
    monkeypatch.setattr(wiring, "SHARED_MEMORY", tmp_path / "nowhere")
    assert images(bare) == settings.cache / "images"
    assert images(load(images=tmp_path / "mine")) == tmp_path / "mine"


def test_a_run_must_be_named(tmp_path):
    with pytest.raises(Invalid, match="no run"):
        open_catalog(load(store="mem://x"), open_store("mem://x"))
