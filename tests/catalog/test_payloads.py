import pytest

from tests.catalog.world import RUN
from weightsync.errors import Corrupt, Denied, Unavailable
from weightsync.format.envelope import seal
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Form, Payload
from weightsync.store.memory import MemoryStore


def add(world, *, version=3, base: VersionRef | None = None, target: VersionRef | None = None, writer="g1", at: str | None = None, run=RUN):
    """Writes a payload as a collector would."""
    form = Form.FOLD if base else Form.SNAPSHOT
    payload = Payload(run, form, writer, target or world.ref(version), base, (), 0, 0)
    key = at or f"versions/{version}/payloads/{payload.base_version}-{writer}"
    world.overwrite(key, seal(payload.to_body()).data)
    return payload


def test_the_first_payload_comes_from_the_manifest_and_others_by_list(world):
    world.publish(3)
    catalog, record = world.catalog(), world.record(3)
    fold, snapshot = add(world, base=world.ref(1)), add(world, writer="g2")
    found = catalog.payloads(record)
    assert found[0] == catalog.payload(record, 2, "1")
    assert sorted(found[1:], key=lambda p: p.base_version) == [snapshot, fold]


def test_payloads_that_do_not_name_the_committed_manifests_are_ignored(world):
    world.publish(3)
    record = world.record(3)
    add(world, target=VersionRef(3, "0" * 64))
    add(world, base=VersionRef(1, "0" * 64), writer="g3")
    add(world, base=world.ref(1), at="versions/3/payloads/1-g4", writer="g5")
    add(world, base=world.ref(1), writer="g6", run="other")
    world.overwrite("versions/3/payloads/1-g7", b"junk")
    world.overwrite("versions/3/payloads/not-a-payload", b"junk")
    assert [p.writer for p in world.catalog().payloads(record)] == ["1"]


def test_a_base_that_was_never_committed_does_not_fit(world):
    claim = world.publish(2)
    plan = world.staged(world.catalog(), claim)  # version 3, not committed
    world.commit(world.catalog(), claim)  # version 4
    record = world.record(4)
    add(world, version=4, base=plan.ref)
    assert len(world.catalog().payloads(record)) == 1
    with pytest.raises(Corrupt, match="names other manifests"):
        world.catalog().payload(record, 3, "g1")


def test_another_way_remains_when_the_first_is_broken(world):
    world.publish(3)
    record = world.record(3)
    world.overwrite("versions/3/payloads/2-1", world.data("versions/2/payloads/1-1"))
    snapshot = add(world)
    assert world.catalog().payloads(record) == [snapshot]
    world.delete("versions/3/payloads/0-g1")
    with pytest.raises(Corrupt, match="versions/3/payloads/2-1"):
        world.catalog().payloads(record)


def test_a_payload_that_is_not_visible_yet_is_waited_for(world):
    world.publish(1)
    record = world.record(1)
    world.delete("versions/1/payloads/0-1")
    with pytest.raises(Unavailable, match="versions/1/payloads/0-1"):
        world.catalog().payloads(record)


def test_without_the_right_to_list_the_first_payload_is_enough(world, monkeypatch):
    world.publish(2)
    record = world.record(2)
    add(world, version=2)

    def refuse(*_):
        raise Denied("no")

    monkeypatch.setattr(MemoryStore, "list", refuse)
    assert [p.writer for p in world.catalog().payloads(record)] == ["1"]
