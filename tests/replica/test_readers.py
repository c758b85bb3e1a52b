"""Other processes read the image without a copy, and never a half-changed one."""

import pytest

from tests.replica import children
from tests.replica.test_kill import bring
from tests.replica.world import sample_layout
from weightsync.errors import Conflict, NotFound, Unavailable
from weightsync.replica.fetch import ShardSource
from weightsync.replica.readers import open_image_readonly
from weightsync.replica.replica import Replica
from weightsync.replica.update import update


def test_reads_what_is_held(world, place):
    bring(world, place / "r", 3)
    with open_image_readonly(place / "r") as reader:
        assert reader.version == world.records[3].ref
        assert bytes(reader.image.data) == world.image(3)
        assert bytes(reader.image.tensor("lm_head")) == world.weights[3]["model.embed"]
        assert reader.verify() == []
        with pytest.raises(TypeError, match="read-only"):
            reader.image.data[0] = 1
        with open_image_readonly(place / "r") as second:
            assert second.layout == sample_layout()


def test_beside_a_writer_in_another_process(world, place):
    with Replica(place / "r", threads=1) as replica:
        update(replica, world.catalog, world.records[2], ShardSource(world.catalog))

        def work() -> None:
            with open_image_readonly(place / "r") as reader:
                assert bytes(reader.image.data) == world.image(2)

        assert children.run(work) == 0


def test_nothing_to_read(place):
    with pytest.raises(NotFound):
        open_image_readonly(place / "nothing")
    assert not (place / "nothing").exists()
    Replica(place / "r").close()
    with pytest.raises(NotFound, match="holds no version"):
        open_image_readonly(place / "r")


def test_not_while_it_is_changed(world, place):
    with Replica(place / "r", threads=1) as replica:
        update(replica, world.catalog, world.records[1], ShardSource(world.catalog))
        layout = world.layouts[1]
        with replica.begin(world.records[2].ref, layout, world.catalog.digests(world.records[2].manifest, layout)) as transition:
            with open_image_readonly(place / "r") as reader:
                assert reader.version == world.records[1].ref
            payload = world.catalog.payload(world.records[2], 1, world.claim.writer)
            from weightsync.format.shard import parse_shard

            for _, data in ShardSource(world.catalog).shards(payload):
                for number, frame in parse_shard(data, len(layout.chunks)):
                    transition.apply(number, frame)
            with pytest.raises(Conflict, match="is being changed"):
                open_image_readonly(place / "r")
            transition.finish()
        with open_image_readonly(place / "r") as reader:
            assert bytes(reader.image.data) == world.image(2)


def test_not_after_a_writer_died_in_the_middle(world, place):
    bring(world, place / "r", 1)
    assert children.run(lambda: bring(world, place / "r", 2), "subscribe.mid_apply=kill@2") == -9
    with pytest.raises(Unavailable, match="died while changing"):
        open_image_readonly(place / "r")
    Replica(place / "r").close()
    with open_image_readonly(place / "r") as reader:
        assert bytes(reader.image.data) == world.image(1)


def test_a_writer_that_died_after_the_mark_left_a_good_image(world, place):
    bring(world, place / "r", 1)
    assert children.run(lambda: bring(world, place / "r", 2), "subscribe.marked=kill") == -9
    assert (place / "r" / "journal").exists()
    with open_image_readonly(place / "r") as reader:
        assert bytes(reader.image.data) == world.image(2)


def test_a_replaced_image_stays_whole(world, place):
    bring(world, place / "r", 4)
    with open_image_readonly(place / "r") as reader:
        bring(world, place / "r", 1)  # a snapshot: a second image, renamed over
        assert bytes(reader.image.data) == world.image(4)
    with open_image_readonly(place / "r") as reader:
        assert bytes(reader.image.data) == world.image(1)


def test_readers_never_see_a_mixture(world, place):
    """A writer goes round and round; whatever a reader gets is one version, whole."""
    bring(world, place / "r", 1)

    def forever() -> None:
        with Replica(place / "r", threads=1) as replica:
            while True:
                for version in (2, 3, 4, 1):
                    update(replica, world.catalog, world.records[version], ShardSource(world.catalog))

    child = children.start(forever)
    seen = set()
    try:
        while len(seen) < 4:
            with open_image_readonly(place / "r", wait_s=5) as reader:
                assert bytes(reader.image.data) == world.image(reader.version.version)
                seen.add(reader.version.version)
    finally:
        children.kill(child)
    assert seen == {1, 2, 3, 4}
