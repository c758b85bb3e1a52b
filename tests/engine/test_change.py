"""What leads from one version to another, and the file that hands it to other processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from weightsync.engine.change import discard_change, inverse, make_change, open_change, tensor_bits
from weightsync.engine.change_file import START_BYTES, Head, Kind, Part, Writer, parse, write_parts
from weightsync.errors import Conflict, Corrupt, Invalid, NotFound, WeightsyncError
from weightsync.replica.past import PastLimits
from weightsync.replica.readers import open_image_readonly
from weightsync.replica.replica import Replica
from weightsync.testing.engine_scene import EngineScene


@pytest.fixture
def scene(tmp_path):
    made = EngineScene(tmp_path / "image", versions=5)
    yield made
    made.close()


def applied(scene, change, base):
    """The weights of `base` with the change written over them."""
    found = {name: lanes.copy() for name, lanes in scene.weights[base - 1].items()}
    for one in change.tensors:
        lanes = found[scene.layout.tensors[one.tensor].name]
        place = slice(None) if one.positions is None else one.positions
        if one.old is not None:
            assert np.array_equal(lanes[place], one.old)
        lanes[place] = one.values
    return found


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize(("base", "version"), [(1, 2), (2, 1), (1, 3), (4, 2), (1, 1)])
def test_it_is_exactly_what_differs(scene, base, version):
    for step in range(1, 6):
        scene.go(step)
    change = scene.change(base, version)
    assert change.base == scene.ref(base)
    assert same(applied(scene, change, base), scene.weights[version - 1])
    for one in change.tensors:
        assert (np.diff(one.positions.astype(np.int64)) > 0).all()
        assert (one.values != one.old).all()
    assert change.lanes == sum(int((scene.weights[base - 1][n] != scene.weights[version - 1][n]).sum()) for n in scene.weights[0])
    assert dict(zip([t.name for t in scene.layout.tensors], map(int, change.sums), strict=True)) == scene.sums(version)


def test_what_cannot_be_reached_is_handed_over_whole(scene):
    scene.go(3)
    for base in (None, scene.ref(9)):
        change = make_change(scene.replica, base)
        assert change.base is None
        assert [one.tensor for one in change.tensors] == list(range(len(scene.layout.tensors)))
        assert same(applied(scene, change, 1), scene.weights[2])
        assert change.file.stat().st_size < START_BYTES + 1024
        discard_change(change)


def test_a_tensor_that_mostly_changed_is_a_view_of_the_image(scene):
    name = scene.layout.tensors[0].name
    moved = dict(scene.weights[0])
    moved[name] = scene.weights[0][name] ^ 1
    change = scene.change(1, scene.add(moved))
    assert [(one.tensor, one.positions is None) for one in change.tensors] == [(0, True)]
    assert np.array_equal(change.tensors[0].old, scene.weights[0][name])
    assert np.array_equal(change.tensors[0].values, moved[name])
    with open_change(change.file) as opened:
        assert np.array_equal(opened.tensors[0].values, moved[name])
        assert np.array_equal(opened.tensors[0].old, scene.weights[0][name])
    back = inverse(change)
    assert same(applied(scene, back, len(scene.weights)), scene.weights[0])
    with open_change(back.file, back.digest) as opened, open_image_readonly(change.image) as reader:
        assert np.array_equal(opened.tensors[0].old, moved[name])
        assert np.array_equal(tensor_bits(opened, reader.image, 0), scene.weights[0][name])


def test_the_inverse_leads_back_and_has_the_sums_of_the_base(scene):
    change = scene.change(2, 4)
    back = inverse(change)
    assert (back.base, back.version, back.holds) == (scene.ref(4), scene.ref(2), scene.ref(4))
    assert same(applied(scene, back, 4), scene.weights[1])
    assert list(map(int, back.sums)) == list(scene.sums(2).values())
    with open_image_readonly(change.image) as reader:
        for number, tensor in enumerate(scene.layout.tensors):
            assert np.array_equal(tensor_bits(back, reader.image, number), scene.weights[1][tensor.name])
            assert np.array_equal(tensor_bits(change, reader.image, number), scene.weights[3][tensor.name])
    with pytest.raises(Invalid):
        inverse(back)
    with pytest.raises(Invalid):
        inverse(make_change(scene.replica, None))


def test_only_the_version_held_can_be_led_to(scene):
    scene.go(2)
    with pytest.raises(Invalid, match="does not hold"):
        make_change(scene.replica, scene.ref(1), scene.ref(3))


CHILD = """
import json, sys
from pathlib import Path
from weightsync.engine.change import open_change
with open_change(Path(sys.argv[1]), sys.argv[2]) as change:
    print(json.dumps([[one.tensor, one.positions is None, one.values.tobytes().hex()] for one in change.tensors]))
"""


@pytest.mark.parametrize("base", [2, None])
def test_another_process_reads_the_same(scene, base):
    change = scene.change(base, 3)
    command = [sys.executable, "-c", CHILD, str(change.file), change.digest]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert found == [[one.tensor, one.positions is None, one.values.tobytes().hex()] for one in change.tensors]


def test_while_it_is_open_whole_the_image_stays_as_it_is(scene):
    change = scene.change(None, 2)
    with open_change(change.file) as opened:
        object.__setattr__(scene.replica._place, "readers_wait_s", 0.0)
        with pytest.raises(Conflict):
            scene.go(3)
        assert np.array_equal(opened.tensors[0].values, scene.weights[1][scene.layout.tensors[0].name])
    scene.go(3)
    with pytest.raises(Conflict, match="stage again"):
        open_change(change.file)


def test_left_files_are_removed_by_who_opens_the_replica_next(scene):
    change = scene.change(1, 2)
    before = {path.name for path in change.image.iterdir()}
    scene.close()
    with Replica(change.image, threads=1, past=PastLimits(image_share=4.0)) as replica:
        assert replica.version == scene.ref(2)
        assert {path.name for path in change.image.iterdir()} == before - {change.file.name}
    with pytest.raises(NotFound):
        open_change(change.file)
    assert change.tensors[0].values.sum() > 0  # who has it mapped reads on


def reopened(change, data):
    path = change.image / f"change-{'0' * 16}"
    path.write_bytes(data)
    path.chmod(0o600)
    with open_change(path) as opened:
        return opened


def test_every_flipped_byte_and_every_cut_is_refused(scene):
    change = scene.change(1, 2)
    data = change.file.read_bytes()
    assert reopened(change, data).lanes == change.lanes
    places = [*range(0, START_BYTES, 7), *range(START_BYTES, len(data), 3)]
    for place in places:
        spoilt = bytearray(data)
        spoilt[place] ^= 1 << (place % 8)
        with pytest.raises(WeightsyncError):
            reopened(change, spoilt)
    for size in (*range(0, START_BYTES + 1, 97), *range(START_BYTES, len(data), 31)):
        with pytest.raises(Corrupt):
            reopened(change, data[:size])
    with pytest.raises(Corrupt):
        reopened(change, data + bytes(64))


def test_another_file_than_was_meant_is_refused(scene):
    first = scene.change(1, 2)
    second = scene.change(2, 3)
    with pytest.raises(Corrupt, match="another one"):
        open_change(second.file, first.digest)


def written(scene, parts, lanes=None, layout=None):
    path = scene.replica.path / f"change-{'1' * 16}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        writer = Writer(fd)
        if lanes is None:
            write_parts(writer, scene.layout, parts)
        else:
            for part in parts:
                writer.add(part, lanes)
        head = Head(scene.ref(1), scene.ref(2), scene.ref(2), layout or scene.layout.digest)
        writer.finish(head, np.zeros(len(scene.layout.tensors), np.uint64), os.pwrite)
    finally:
        os.close(fd)
    return path


def sparse(positions, values=None, *, tensor=0, dtype="<u4"):
    values = np.zeros(len(positions), "<u2") if values is None else values
    return Part(tensor, Kind.SPARSE, np.array(positions, dtype), values, values)


HOSTILE = {
    "beyond the tensor": ([sparse([0, 96 * 32])], None),
    "twice": ([sparse([5, 5])], None),
    "backwards": ([sparse([6, 5])], None),
    "none": ([sparse([])], None),
    "tensors twice": ([sparse([1]), sparse([2])], None),
    "tensors backwards": ([sparse([1], tensor=1), sparse([2], tensor=0)], None),
    "no such tensor": ([sparse([1], tensor=99)], 1),
    "more lanes than there are": ([sparse([1])], 1 << 40),
    "fewer lanes than there are": ([sparse(list(range(100)))], 1),
    "narrow whole": ([Part(0, Kind.STORED, values=np.zeros(5, "<u2"))], 5),
    "no such kind": ([Part(0, 7, values=np.zeros(5, "<u2"))], 5),
    "tensors of another layout": ([sparse([1], tensor=n) for n in range(7)], 1),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_what_contradicts_itself_under_right_digests_is_refused(scene, case):
    scene.go(2)
    parts, lanes = HOSTILE[case]
    with pytest.raises(Corrupt):
        open_change(written(scene, parts, lanes))


def test_a_layout_that_is_not_there_is_refused(scene):
    scene.go(2)
    with pytest.raises(Corrupt, match="layout"):
        open_change(written(scene, [sparse([1])], layout="0" * 64))


def test_a_name_that_is_none_of_ours_is_not_opened(scene, tmp_path):
    change = scene.change(1, 2)
    for path in (tmp_path / "x", change.image / "state", change.image / "change-x", Path("change-" + "0" * 16)):
        with pytest.raises(NotFound):
            open_change(path)
    link = change.image / f"change-{'2' * 16}"
    link.symlink_to(change.file)
    with pytest.raises(WeightsyncError):
        open_change(link)


def test_an_empty_mapping_is_no_change_file():
    with pytest.raises(Corrupt):
        parse(memoryview(b""), "it", lambda digest: None)
