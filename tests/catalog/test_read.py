import numpy as np
import pytest

from tests.catalog.world import CONFIG, LAYOUT, RUN, table_of
from weightsync.catalog import Catalog
from weightsync.errors import Corrupt, Invalid, NotFound, Unavailable, Unsupported
from weightsync.format.dtypes import dtype_named
from weightsync.format.envelope import seal
from weightsync.format.layout import Tensor, make_layout
from weightsync.format.limits import MAX_DIGESTS_BYTES, MAX_LAYOUT_BYTES
from weightsync.format.operators import Run
from weightsync.format.refs import Ref
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Fault


def test_an_empty_store_says_what_to_do(world):
    catalog = world.catalog()
    assert catalog.head() is None
    assert catalog.committed() == []
    assert catalog.channels() == []
    assert catalog.boundary() == (None, None)
    for call in (catalog.run, lambda: catalog.manifest_of(1), lambda: catalog.find(1)):
        with pytest.raises(NotFound, match=r"run 'run' does not exist in mem://test.*--run"):
            call()


def test_a_run_without_versions_says_so(world):
    catalog = world.catalog()
    catalog.open_run("tiny")
    with pytest.raises(NotFound, match=r"nothing was published to run 'run'.*weightsync publish"):
        catalog.find(1)
    catalog.claim("trainer")
    assert catalog.head().version is None
    assert catalog.committed() == []
    with pytest.raises(NotFound, match=r"version 1 of run 'run' does not exist \(the highest is 0\)"):
        catalog.find(1)


def test_what_was_published_is_read_back(world):
    world.publish(3)
    catalog = world.catalog()
    head = catalog.head()
    assert (head.move.version, head.move.sequence, head.move.epoch, head.move.highest) == (3, 4, 1, 3)
    assert [ref.version for ref in catalog.committed()] == [1, 2, 3]
    record = catalog.manifest_of(3)
    assert record.ref == head.version == catalog.find(3)
    assert record.nbytes == len(world.data("versions/3/manifest"))
    assert record.manifest.parent == catalog.find(2)
    assert record.manifest.step == 30
    layout = catalog.layout(record.manifest.layout)
    assert layout == LAYOUT
    table = catalog.digests(record.manifest, layout)
    assert table.leaves == table_of(LAYOUT, 3).leaves
    assert np.array_equal(table.sums, table_of(LAYOUT, 3).sums)
    files = catalog.file_table(record.manifest.files)
    assert catalog.file(files.small[0].ref) == CONFIG


def test_only_changed_heads_are_read_again(world):
    claim = world.publish(1)
    catalog = world.catalog()
    head = catalog.head()
    assert catalog.head_if_changed("latest", head.etag) is None
    world.commit(catalog, claim)
    assert catalog.head_if_changed("latest", head.etag).move.version == 2


def test_a_head_that_vanished_is_not_taken_for_an_empty_run(world):
    world.publish(1)
    catalog = world.catalog()
    etag = catalog.head().etag
    world.delete("channels/latest/head")
    with pytest.raises(Unavailable, match="channels/latest/head"):
        catalog.head_if_changed("latest", etag)


def test_channels_are_listed_by_their_heads(world):
    world.publish(1)
    catalog = world.catalog()
    for channel in ("serving", "canary"):
        catalog.move(channel, 1, expected_sequence=0, who="op", why="")
    world.overwrite("channels/no-head/log/1-aa", b"")
    assert catalog.channels() == ["canary", "latest", "serving"]


@pytest.mark.parametrize("channel", ["", "..", "a/b", ".hidden", "a b", "x" * 129])
def test_hostile_channel_names_are_refused(world, channel):
    world.publish(1)
    with pytest.raises(Invalid):
        world.catalog().head(channel)
    with pytest.raises(Invalid):
        world.catalog().move(channel, 1, expected_sequence=0, who="op", why="")


@pytest.mark.parametrize("run", ["", "../x", "a/b", "-x", "x..y"])
def test_hostile_run_names_are_refused(run):
    with pytest.raises(Invalid, match="run"):
        Catalog(MemoryStore(), run)


def test_layouts_are_fetched_once(world):
    world.publish(1)
    catalog = world.catalog()
    ref = world.record(1).manifest.layout
    first, before = catalog.layout(ref), world.reads()
    assert catalog.layout(ref) is first
    assert world.reads() == before


def test_a_missing_object_is_unavailable_not_corrupt(world):
    world.publish(1)
    manifest = world.record(1).manifest
    catalog = world.catalog()
    for key, read in (
        (f"layouts/{manifest.layout.digest}", lambda: catalog.layout(manifest.layout)),
        (f"files/{manifest.files.digest}", lambda: catalog.file_table(manifest.files)),
        (f"digests/1-1/{manifest.digests.digest}", lambda: catalog.digests(manifest, LAYOUT)),
        ("versions/1/payloads/0-1", lambda: catalog.payload(catalog.manifest_of(1), 0, "1")),
        ("versions/1/manifest", lambda: catalog.manifest_of(1)),
    ):
        world.delete(key)
        with pytest.raises(Unavailable, match="retry"):
            read()


def test_other_bytes_are_refused_before_they_are_parsed(world):
    world.publish(1)
    manifest = world.record(1).manifest
    reads = {
        f"layouts/{manifest.layout.digest}": lambda c: c.layout(manifest.layout),
        f"files/{manifest.files.digest}": lambda c: c.file_table(manifest.files),
        f"digests/1-1/{manifest.digests.digest}": lambda c: c.digests(manifest, LAYOUT),
    }
    for key, read in reads.items():
        good = world.data(key)
        for bad in (good[:-1], good + b" ", bytes([good[0] ^ 1]) + good[1:], b""):
            world.overwrite(key, bad)
            with pytest.raises(Corrupt, match=key):
                read(world.catalog())
        world.overwrite(key, good)
        read(world.catalog())


def test_no_read_is_longer_than_its_limit(world):
    catalog = world.catalog()
    for read in (catalog.layout, catalog.file, catalog.file_table):
        with pytest.raises(Corrupt, match="more than"):
            read(Ref("0" * 64, MAX_LAYOUT_BYTES + 1))
    world.publish(1)
    manifest = world.record(1).manifest
    object.__setattr__(manifest, "digests", Ref("0" * 64, MAX_DIGESTS_BYTES + 1))
    with pytest.raises(Corrupt, match="more than"):
        catalog.digests(manifest, LAYOUT)


def test_content_that_is_no_table_is_refused_by_name(world):
    catalog = world.catalog()
    junk = b"{}"
    ref = Ref.of(junk)
    for key in (catalog.keys.layout(ref.digest), catalog.keys.file(ref.digest)):
        world.store.put(key, junk)
        with pytest.raises(Corrupt, match=ref.digest):
            (catalog.layout if "layouts" in key else catalog.file_table)(ref)


def test_leaves_of_another_layout_are_refused(world):
    world.publish(1)
    other = make_layout([Tensor("a", dtype_named("BF16"), (3,))])
    with pytest.raises(Invalid, match="not the layout of version 1"):
        world.catalog().digests(world.record(1).manifest, other)


def test_a_record_of_another_run_is_refused(world):
    world.publish(1)
    other = Catalog(world.store, "other")
    for key in ("run.json", "channels/latest/head", "versions/1/manifest", "versions/1/payloads/0-1"):
        world.store.put(f"other/{key}", world.data(key))
    ref = world.ref(1)
    with pytest.raises(Corrupt, match="run 'run'"):
        other.run()
    with pytest.raises(Corrupt, match="run 'run'"):
        other.head()
    with pytest.raises(Corrupt, match="run 'run'"):
        other.manifest_of(1, ref.manifest)
    with pytest.raises(Corrupt, match="run 'run'"):
        other.payload(world.record(1), 0, "1")


def test_records_in_one_anothers_place_are_refused(world):
    world.publish(2)
    keys = ["run.json", "channels/latest/head", "versions/1/manifest", "versions/2/manifest", "versions/2/payloads/1-1"]
    original = {key: world.data(key) for key in keys}
    record = world.record(2)
    reads = [
        lambda c: c.run(),
        lambda c: c.head(),
        lambda c: c.manifest_of(1, world_ref.manifest),
        lambda c: c.manifest_of(2, record.ref.manifest),
        lambda c: c.payload(record, 1, "1"),
    ]
    world_ref = world.ref(1)
    for key, read in zip(keys, reads, strict=True):
        for other in keys:
            if other != key:
                world.overwrite(key, original[other])
                with pytest.raises((Corrupt, Unsupported)):
                    read(world.catalog())
        world.overwrite(key, original[key])
        read(world.catalog())


def test_a_manifest_of_another_content_is_refused_by_its_digest(world):
    world.publish(2)
    with pytest.raises(Corrupt, match=r"versions/1/manifest.*committed"):
        world.catalog().manifest_of(1, world.ref(2).manifest)


def test_an_uncommitted_version_does_not_exist(world):
    claim = world.publish(1)
    world.staged(world.catalog(), claim)
    with pytest.raises(NotFound, match="version 2 of run 'run' does not exist"):
        world.catalog().manifest_of(2)
    for number in (0, -1, 10**9):
        with pytest.raises(NotFound, match="does not exist"):
            world.catalog().find(number)


def test_a_run_is_made_once_and_adopted_after(world):
    first = world.catalog().open_run("tiny")
    assert world.catalog().open_run("tiny") == first
    assert world.catalog().open_run("") == first
    assert world.catalog().run() == first
    with pytest.raises(Invalid, match=r"holds model 'tiny', not 'other'.*--run"):
        world.catalog().open_run("other")


def test_two_who_make_a_run_agree(world):
    first, second = world.catalog(), world.catalog()
    run = second.open_run("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first._reader, "run", _fails_once(first._reader.run))
        assert first.open_run("tiny") == run


def _fails_once(read):
    calls = []

    def run() -> Run:
        calls.append(1)
        if len(calls) == 1:
            raise NotFound("not yet")
        return read()

    return run


def test_the_stores_own_failures_are_passed_on(world):
    world.publish(1)
    world.store.inject(Fault.UNAVAILABLE, operation="get", key="head")
    with pytest.raises(Unavailable):
        world.catalog().head()


def test_unknown_fields_mean_upgrade_unless_marked(world):
    body = world.catalog().open_run("tiny").to_body()
    world.overwrite("run.json", seal(body[:-1] + b',"x-note":1}').data)
    assert world.catalog().run().model == "tiny"
    world.overwrite("run.json", seal(body[:-1] + b',"y":1}').data)
    with pytest.raises(Unsupported, match=f"{RUN}/run.json.*unknown field 'y'.*upgrade"):
        world.catalog().run()
