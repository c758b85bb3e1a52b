"""Every field of every record: removed, retyped, unknown, out of range. All of it is refused with a typed error."""

import pytest

from tests.format.samples import (
    BOUNDARY,
    FILES,
    LAYOUT,
    MANIFEST,
    MOVE,
    PAYLOAD,
    RENEWAL,
    RUN,
    SAMPLES,
    A,
    B,
    C,
    Sample,
    fields,
    objects,
    spoilt,
)
from weightsync.errors import Corrupt, Unsupported
from weightsync.format import canonical
from weightsync.format.envelope import seal
from weightsync.format.limits import MAX_FILE_BYTES, MAX_HEADER_BYTES, MAX_INTEGER, MAX_SHARD_BYTES
from weightsync.format.moves import Move, Renewal, join_head, split_head
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Form, Manifest, Payload, Shard

REFUSED = (Corrupt, Unsupported)
EVERY_FIELD = [pytest.param(sample, path, name, id=f"{sample}-{path}-{name}") for sample in SAMPLES for path, name in fields(sample)]


def sample(name: str) -> Sample:
    return next(s for s in SAMPLES if s.name == name)


@pytest.mark.parametrize("good", SAMPLES, ids=str)
def test_what_is_written_is_read_back(good):
    assert good.read(good.data) == good.value
    assert canonical.to_bytes(canonical.parse(good.data, "x")) == good.data


@pytest.mark.parametrize(("good", "path", "name"), EVERY_FIELD)
def test_a_missing_field_is_refused(good, path, name):
    with pytest.raises(Corrupt, match=f"lacks '{name}'"):
        good.read(spoilt(good, path, lambda fields: fields.pop(name)))


@pytest.mark.parametrize(("good", "path", "name"), EVERY_FIELD)
def test_a_field_of_another_type_is_refused(good, path, name):
    """Booleans are no integers, strings no numbers, null only where it means something."""
    value = canonical.parse(good.data, "x")
    for step in path:
        value = value[step]
    kinds = {"text": "x", "number": 3, "true": True, "list": [1], "object": {"a": 1}, "null": None, "text of hex": A}
    nullable = {"manifest", "previous", "expires_ms", "parent", "base", "step"}
    for wrong in kinds.values():
        if type(wrong) is type(value[name]) or (name in nullable and wrong is None):
            continue
        if value[name] is None and name in nullable and isinstance(wrong, int) and not isinstance(wrong, bool):
            continue  # a number is what such a field may hold
        with pytest.raises(REFUSED):
            good.read(spoilt(good, path, lambda fields, wrong=wrong: fields.update({name: wrong})))


@pytest.mark.parametrize(("good", "path", "name"), EVERY_FIELD)
def test_a_field_out_of_range_is_refused(good, path, name):
    """Numbers below zero, digests of another length or case."""
    value = canonical.parse(good.data, "x")
    for step in path:
        value = value[step]
    now = value[name]
    if type(now) is int:
        wrong = [-1, -MAX_INTEGER]
    elif isinstance(now, str) and len(now) in (16, 64) and set(now) <= set("0123456789abcdef"):
        wrong = [now[:-1], now + "0", now.upper() if now.upper() != now else "g" + now[1:], "", now[:-1] + "g", now[:-1] + "\n"]
    else:
        return
    for bad in wrong:
        with pytest.raises(REFUSED):
            good.read(spoilt(good, path, lambda fields, bad=bad: fields.update({name: bad})))


@pytest.mark.parametrize("good", SAMPLES, ids=str)
def test_an_unknown_field_is_refused_at_every_level_unless_it_is_marked(good):
    for path in objects(canonical.parse(good.data, "x")):
        with pytest.raises(Unsupported, match=r"unknown field 'zz'.*upgrade"):
            good.read(spoilt(good, path, lambda fields: fields.update({"zz": 1})))
        if good.name == "layout":
            continue  # a layout is compared with its own bytes: there is one spelling and no room for notes
        assert good.read(spoilt(good, path, lambda fields: fields.update({"x-zz": 1}))) == good.value


@pytest.mark.parametrize("good", SAMPLES, ids=str)
def test_another_kind_or_format_means_upgrade(good):
    for name, value in (("format", 2), ("format", 0), ("kind", "other")):
        with pytest.raises(Unsupported, match=f"{name} {value!r}.*upgrade"):
            good.read(spoilt(good, (), lambda fields, name=name, value=value: fields.update({name: value})))


@pytest.mark.parametrize("good", SAMPLES, ids=str)
@pytest.mark.parametrize("bad", [b"null", b"[]", b'"x"', b"1", b"true", b"{}", b"[" * 2000 + b"]" * 2000], ids=repr)
def test_what_is_no_such_object_is_refused(good, bad):
    with pytest.raises(REFUSED):
        good.read(bad)


@pytest.mark.parametrize("good", [s for s in SAMPLES if s.name not in ("layout", "files")], ids=str)
def test_a_record_of_another_run_is_refused(good):
    with pytest.raises(Corrupt, match=r"'other'|another move"):
        good.read(spoilt(good, (), lambda fields: fields.update(run="other")))


@pytest.mark.parametrize("good", SAMPLES, ids=str)
def test_a_record_in_the_place_of_another_kind_is_refused(good):
    for other in SAMPLES:
        if other.value.__class__ is not good.value.__class__:
            with pytest.raises(REFUSED):
                good.read(other.data)


class TestMoves:
    def read(self, **changes):
        body = Move(**{**vars(MOVE), **changes}).to_body()
        return Move.from_envelope(seal(body), run=RUN, channel="latest")

    @pytest.mark.parametrize(
        "changes",
        [
            {"version": 0},
            {"manifest": None},
            {"version": 7},
            {"sequence": 8},
            {"sequence": 1},
            {"previous": None},
            {"channel": "serving"},
            {"sequence": 0},
            {"who": "x" * 4097},
            {"why": "x" * 4097},
        ],
        ids=str,
    )
    def test_a_move_that_contradicts_itself_is_refused(self, changes):
        with pytest.raises(Corrupt):
            self.read(**changes)

    def test_moves_to_the_edge(self):
        assert self.read(sequence=MAX_INTEGER, previous=type(MOVE.previous)(MAX_INTEGER - 1, "0" * 16, A)).sequence == MAX_INTEGER

    def test_a_head_is_a_move_and_perhaps_a_renewal(self):
        move, renewal = seal(MOVE.to_body()).data, seal(RENEWAL.to_body()).data
        assert split_head(join_head(move)) == (move, None)
        assert split_head(join_head(move, renewal)) == (move, renewal)
        assert split_head(move + b"\n") == (move, b"")

    def test_a_renewal_belongs_to_one_move(self):
        with pytest.raises(Corrupt, match="another move"):
            Renewal.from_envelope(seal(RENEWAL.to_body()), run=RUN, move=B)
        with pytest.raises(Corrupt, match="another move"):
            Renewal.from_envelope(seal(RENEWAL.to_body()), run="other", move=A)


class TestVersions:
    def payload(self, **changes):
        return Payload.from_envelope(seal(Payload(**{**vars(PAYLOAD), **changes}).to_body()), run=RUN)

    @pytest.mark.parametrize(
        "shards",
        [
            (Shard(A, 10, 4, 9), Shard(B, 10, 0, 3)),
            (Shard(A, 10, 0, 4), Shard(B, 10, 4, 9)),
            (Shard(A, 10, 5, 4),),
            (Shard(A, 0, 0, 1),),
            (Shard(A, MAX_SHARD_BYTES + 1, 0, 1),),
        ],
        ids=["out of order", "overlapping", "turned round", "empty", "too large"],
    )
    def test_impossible_shards_are_refused(self, shards):
        with pytest.raises(Corrupt):
            self.payload(shards=shards)

    def test_a_payload_that_contradicts_its_form_is_refused(self):
        for changes in ({"base": None}, {"form": Form.SNAPSHOT}, {"base": VersionRef(5, A)}):
            with pytest.raises(Corrupt, match="contradicts"):
                self.payload(**changes)
        assert self.payload(form=Form.SNAPSHOT, base=None).base_version == 0
        assert self.payload().nbytes == 30

    def test_a_form_that_is_not_known_means_upgrade(self):
        with pytest.raises(Unsupported, match=r"form 'diagonal'.*upgrade"):
            sample("payload").read(spoilt(sample("payload"), (), lambda fields: fields.update(form="diagonal")))

    def test_a_manifest_is_that_of_its_version(self):
        with pytest.raises(Corrupt, match="manifest of version 6 is that of version 5"):
            Manifest.from_envelope(seal(MANIFEST.to_body()), run=RUN, version=6)

    @pytest.mark.parametrize("changes", [{"parent": None}, {"base": 3}, {"base": 5}], ids=str)
    def test_the_first_payload_starts_from_the_parent(self, changes):
        body = Manifest(**{**vars(MANIFEST), **changes}).to_body()
        with pytest.raises(Corrupt, match="does not start from its parent"):
            Manifest.from_envelope(seal(body), run=RUN, version=5)

    def test_a_parent_is_older(self):
        for number in (5, 6):
            body = Manifest(**{**vars(MANIFEST), "parent": VersionRef(number, C), "base": 0}).to_body()
            with pytest.raises(Corrupt, match="is not older"):
                Manifest.from_envelope(seal(body), run=RUN, version=5)

    @pytest.mark.parametrize("name", ["manifest", "payload"])
    def test_a_writer_is_short(self, name):
        with pytest.raises(Corrupt, match="longer than 32"):
            sample(name).read(spoilt(sample(name), (), lambda fields: fields.update(writer="1" * 33)))


class TestBoundary:
    @pytest.mark.parametrize(
        "changes",
        [
            {"versions": [[1]]},
            {"versions": [[1, 2, 3]]},
            {"versions": [["1", 2]]},
            {"versions": [1]},
            {"versions": [[True, 2]]},
            {"marked": {"versions/1": "x"}},
            {"marked": {"versions/1": True}},
            {"names": [1]},
            {"held": [1]},
            {"versions": [[0, 2]]},
            {"versions": [[3, 2]]},
        ],
        ids=str,
    )
    def test_malformed_parts_are_refused(self, changes):
        with pytest.raises(Corrupt, match="boundary"):
            sample("boundary").read(spoilt(sample("boundary"), (), lambda fields: fields.update(changes)))

    def test_what_it_says(self):
        assert [BOUNDARY.condemned(n) for n in range(1, 6)] == [True, True, False, True, False]
        assert [BOUNDARY.hit(n) for n in range(1, 6)] == [True, True, True, True, False]
        assert BOUNDARY.hit_name("versions/3")
        assert BOUNDARY.hit_name("payloads/9/0-g1")
        assert not BOUNDARY.hit_name("payloads/9/0-g2")

    @pytest.mark.parametrize(
        ("name", "gone"),
        [
            ("versions/1", True),
            ("versions/2", False),  # one of its payloads is held
            ("versions/3", False),  # only marked
            ("payloads/1/0-1", True),
            ("payloads/2/1-1", False),
            ("payloads/2/0-1", True),
            ("payloads/3/2-1", False),
            ("payloads/9/0-g1", True),
            ("digests/1-1", True),
            ("digests/1-2", False),
            ("digests/7-4", True),
            ("digests/7-5", False),
            ("shards/1-4-3", True),
            ("layouts/4", False),
            ("", False),
        ],
    )
    def test_what_may_be_deleted(self, name, gone):
        assert BOUNDARY.gone(name) is gone


class TestTables:
    @pytest.mark.parametrize(
        "change",
        [
            lambda fields: fields["small"].append(fields["small"][0]),
            lambda fields: fields["tensors"].append({"header": {"bytes": 1, "digest": A}, "name": "CONFIG.json"}),
            lambda fields: fields["small"][0].update(name="../config.json"),
            lambda fields: fields["small"][0].update(name="/etc/passwd"),
            lambda fields: fields["small"][0]["content"].update(bytes=MAX_FILE_BYTES + 1),
            lambda fields: fields["tensors"][0]["header"].update(bytes=MAX_HEADER_BYTES + 1),
        ],
        ids=["twice", "twice but for case", "above", "absolute", "file too large", "header too large"],
    )
    def test_impossible_files_are_refused(self, change):
        with pytest.raises(Corrupt):
            sample("files").read(spoilt(sample("files"), (), change))
        assert FILES.small[0].name == "config.json"

    @pytest.mark.parametrize(
        "change",
        [
            lambda fields: fields["tensors"].reverse(),
            lambda fields: fields["tensors"].append(fields["tensors"][0]),
            lambda fields: fields["tensors"][0].append(1),
            lambda fields: fields["tensors"].append(["c", "BF16", [-1]]),
            lambda fields: fields["tensors"].append(["c", "BF16", [True]]),
            lambda fields: fields["tensors"].append(["c", "BF16", [MAX_INTEGER, MAX_INTEGER]]),
            lambda fields: fields["tensors"].append(["c", "BF16", [1] * 17]),
            lambda fields: fields["tensors"].append(["c\n", "BF16", [1]]),
            lambda fields: fields["aliases"].append(["c", "nothing"]),
            lambda fields: fields["aliases"].append(["b", "a"]),
            lambda fields: fields["aliases"].append(["tied", "a"]),
            lambda fields: fields["aliases"].append(["c", "a", "b"]),
            lambda fields: fields.update(chunk_lanes=1),
            lambda fields: fields.update(chunk_lanes=1 << 30),
            lambda fields: fields.update(leaf="md5"),
        ],
    )
    def test_impossible_layouts_are_refused(self, change):
        with pytest.raises(Corrupt):
            sample("layout").read(spoilt(sample("layout"), (), change))
        assert LAYOUT.aliases == (("tied", "a"),)

    def test_a_dtype_that_is_not_known_means_upgrade(self):
        with pytest.raises(Unsupported, match="'F7'"):
            sample("layout").read(spoilt(sample("layout"), (), lambda fields: fields["tensors"].append(["c", "F7", [1]])))


def test_keys_of_a_run_are_named_by_text():
    with pytest.raises(Corrupt, match="trusted"):
        sample("run").read(spoilt(sample("run"), (), lambda fields: fields.update(trusted=["a", 1])))
