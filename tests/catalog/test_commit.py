import pytest

from tests.catalog.world import LAYOUT, RUN
from weightsync.catalog import commit
from weightsync.errors import Invalid, Unavailable
from weightsync.format.envelope import Envelope
from weightsync.format.moves import Move
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Form, Manifest, Payload, Shard


def test_a_plan_is_three_records_that_name_one_another(world):
    catalog = world.catalog()
    claim = world.publish(2, catalog)
    operations = len(world.store.log)
    new, _ = world.new_version(catalog, claim, note="a note")
    looked = len(world.store.log)
    plan = catalog.plan_commit(claim, new)
    assert looked > operations
    assert len(world.store.log) == looked  # planning touches nothing
    records = {key: Envelope.parse(data, key) for key, data in plan.objects}
    manifest = Manifest.from_envelope(records[f"{RUN}/versions/3/manifest"], run=RUN, version=3)
    payload = Payload.from_envelope(records[f"{RUN}/versions/3/payloads/2-1"], run=RUN)
    move = Move.from_envelope(records[f"{RUN}/channels/latest/log/4-{plan.move.write_id}"], run=RUN, channel="latest")
    assert (manifest, payload, move) == (plan.record.manifest, plan.payload, plan.move)
    assert payload.target == plan.ref == VersionRef(3, records[f"{RUN}/versions/3/manifest"].digest)
    assert payload.base == manifest.parent == claim.head.version
    assert move.manifest == Ref(plan.ref.manifest, plan.record.nbytes)
    assert move.previous == claim.head.ref
    assert (manifest.writer, payload.writer, manifest.epoch, move.epoch) == ("1", "1", 1, 1)
    assert (manifest.note, manifest.checkpoint_bytes, manifest.payload_bytes) == ("a note", LAYOUT.nbytes, payload.nbytes)


def test_a_plan_that_is_not_finished_changes_nothing(world):
    claim = world.publish(1)
    world.staged(world.catalog(), claim)
    assert world.catalog().head() == claim.head
    assert [ref.version for ref in world.catalog().committed()] == [1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"number": 2}, "not above the highest"),
        ({"number": 0}, "not above the highest"),
        ({"form": Form.FOLD}, "not a fold"),
        ({"form": Form.SNAPSHOT}, "not a snapshot"),
        ({"base": None}, "not a delta"),
        ({"base": VersionRef(1, "0" * 64)}, "start from its parent"),
        ({"parent": None}, "start from its parent"),
        ({"parent": VersionRef(9, "0" * 64), "base": VersionRef(9, "0" * 64)}, "was not committed"),
        ({"root": "x"}, "cannot be written"),
        ({"note": "x" * 5000}, "cannot be written"),
        ({"note": "\ud800"}, "cannot be written"),
        ({"step": 1 << 60}, "cannot be written"),
        ({"step": -1}, "cannot be written"),
        ({"shards": (Shard("0" * 64, 1, 5, 9), Shard("0" * 64, 1, 0, 4))}, "cannot be written"),
        ({"shards": tuple(Shard("0" * 64, 1, n, n) for n in range(50_000))}, "beyond the limit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_readers_would_refuse_is_not_planned(world, changes, message):
    catalog = world.catalog()
    claim = world.publish(2, catalog)
    new, _ = world.new_version(catalog, claim)
    new = type(new)(**{**vars(new), **changes})
    with pytest.raises(Invalid, match=message):
        catalog.plan_commit(claim, new)


def test_going_back_to_an_older_step_is_a_new_version(world):
    claim = world.publish(3)
    after = world.commit(world.catalog(), claim, parent=world.ref(1), base=world.ref(1))
    record = world.record(4)
    assert (after.head.move.version, record.manifest.parent.version) == (4, 1)
    assert world.catalog().payloads(record)[0].base == world.ref(1)


def test_a_snapshot_keeps_its_parent(world):
    claim = world.publish(1)
    world.commit(world.catalog(), claim, base=None, form=Form.SNAPSHOT)
    record = world.record(2)
    assert (record.manifest.parent.version, record.manifest.base) == (1, 0)
    assert world.catalog().payload(record, 0, "1").form is Form.SNAPSHOT


def test_numbers_skip_what_was_left_behind(world):
    claim = world.publish(1)
    catalog = world.catalog()
    assert catalog.next_number(claim) == 2
    for number in (2, 3, 5):
        world.overwrite(f"versions/{number}/manifest", b"left behind")
    assert catalog.next_number(claim) == 4
    world.overwrite("versions/4/manifest", b"left behind")
    assert catalog.next_number(claim) == 6


def test_a_store_full_of_uncommitted_manifests_is_not_walked_for_ever(world, monkeypatch):
    monkeypatch.setattr(commit, "MAX_VOID_NUMBERS", 5)
    claim = world.publish(1)
    for number in range(2, 7):
        world.overwrite(f"versions/{number}/manifest", b"left behind")
    with pytest.raises(Unavailable, match="manifests for all of 2 to 6"):
        world.catalog().next_number(claim)


def test_a_claim_keeps_the_version(world):
    world.publish(2)
    claim = world.catalog().claim("another")
    assert (claim.epoch, claim.writer, claim.who) == (2, "2", "another")
    assert claim.head.version == world.ref(2)
    assert (claim.head.move.highest, claim.head.move.why) == (2, "claim")
