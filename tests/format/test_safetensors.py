"""Headers of safetensors files: what the usual library writes is read, everything else is refused by name."""

import contextlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import Corrupt, Invalid, Unsupported, WeightsyncError
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor
from weightsync.format.limits import MAX_HEADER_BYTES
from weightsync.format.safetensors import PREFIX_BYTES, file_order, header_bytes, make_header, parse_header

GOOD = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}


def raw(table, padding=b""):
    text = (table if isinstance(table, bytes) else json.dumps(table).encode()) + padding
    return struct.pack("<Q", len(text)) + text


def read(table, data_bytes=12, padding=b""):
    header = raw(table, padding)
    return parse_header(header, len(header) + data_bytes, "x.safetensors")


def test_reads_what_the_library_writes():
    torch = pytest.importorskip("torch")
    from safetensors.torch import save

    tensors = {
        "b": torch.zeros(3, 2, dtype=torch.bfloat16),
        "a": torch.tensor(1.5),
        "none": torch.zeros(0, 4, dtype=torch.float16),
        "f8": torch.zeros(5, dtype=torch.float8_e4m3fn),
        "flags": torch.zeros(7, dtype=torch.bool),
    }
    data = save(tensors, {"format": "pt"})
    size = header_bytes(data[:PREFIX_BYTES], len(data), "x")
    header = parse_header(data[:size], len(data), "x")
    assert header.metadata == {"format": "pt"}
    assert header.raw == data[:size]
    assert header.file_bytes == len(data)
    assert {e.name: (e.dtype.name, e.shape) for e in header.entries} == {
        "a": ("F32", ()),
        "b": ("BF16", (3, 2)),
        "none": ("F16", (0, 4)),
        "f8": ("F8_E4M3", (5,)),
        "flags": ("BOOL", (7,)),
    }
    assert [e.begin for e in header.entries] == sorted(e.begin for e in header.entries)


def test_the_library_reads_what_is_made():
    torch = pytest.importorskip("torch")
    from safetensors.torch import load

    tensors = [
        Tensor("w", DTYPES["BF16"], (3, 2)),
        Tensor("s", DTYPES["F64"], ()),
        Tensor("e", DTYPES["I32"], (0,)),
        Tensor("ü", DTYPES["U8"], (3,)),
    ]
    header = make_header(file_order(tensors), {"format": "pt"})
    assert header.data_start % 8 == 0
    loaded = load(header.raw + bytes(header.data_bytes))
    assert {name: tuple(t.shape) for name, t in loaded.items()} == {t.name: t.shape for t in tensors}
    assert loaded["w"].dtype == torch.bfloat16


names = st.text(st.characters(categories=("L", "N"), max_codepoint=0x7E), min_size=1, max_size=8)
tensors_of_all_types = st.lists(
    st.builds(
        Tensor,
        names,
        st.sampled_from([d for d in DTYPES.values() if d.elements_per_lane == 1]),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
    ),
    max_size=8,
    unique_by=lambda tensor: tensor.name,
)


@given(tensors_of_all_types, st.none() | st.dictionaries(names, st.text(max_size=5), max_size=3))
def test_what_is_made_reads_back(tensors, metadata):
    made = make_header(tensors, metadata)
    found = parse_header(made.raw, made.file_bytes, "x")
    assert (found.raw, found.metadata, found.names) == (made.raw, metadata, {tensor.name for tensor in tensors})
    assert {(e.name, e.begin, e.end) for e in found.entries} == {(e.name, e.begin, e.end) for e in made.entries}
    assert parse_header(made.raw, None, "x") == found


def test_padding_with_spaces_is_kept():
    header = read({"w": GOOD}, padding=b"     ")
    assert header.raw.endswith(b"     ")
    assert header.file_bytes == len(header.raw) + 12


def test_no_tensors():
    assert read({}, data_bytes=0).entries == ()
    assert read({"__metadata__": {}}, data_bytes=0).metadata == {}


BAD_STRUCTURE = {
    "duplicate name": b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"w":{"dtype":"U8","shape":[10],"data_offsets":[2,12]}}',
    "duplicate field": b'{"w":{"dtype":"U8","dtype":"I8","shape":[12],"data_offsets":[0,12]}}',
    "overlap": {"a": GOOD, "w": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}},
    "same place twice": {"a": GOOD, "w": GOOD},
    "hole in front": {"w": {"dtype": "U8", "shape": [8], "data_offsets": [4, 12]}},
    "hole between": {
        "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
        "w": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]},
    },
    "bytes behind": {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}},
    "beyond the end": {"w": {"dtype": "U8", "shape": [400], "data_offsets": [0, 400]}},
    "size lies": {"w": {"dtype": "BF16", "shape": [2, 4], "data_offsets": [0, 12]}},
    "ends before it begins": {"w": {"dtype": "U8", "shape": [0], "data_offsets": [12, 0]}},
    "negative size": {"w": {"dtype": "U8", "shape": [-12], "data_offsets": [0, 12]}},
    "negative offset": {"w": {"dtype": "U8", "shape": [12], "data_offsets": [-12, 0]}},
    "float size": b'{"w":{"dtype":"U8","shape":[12.0],"data_offsets":[0,12]}}',
    "bool size": {"w": {"dtype": "U8", "shape": [12, True], "data_offsets": [0, 12]}},
    "huge integer": b'{"w":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,12]}}',
    "NaN": b'{"w":{"dtype":"U8","shape":[NaN],"data_offsets":[0,12]}}',
    "three offsets": {"w": {"dtype": "U8", "shape": [12], "data_offsets": [0, 6, 12]}},
    "no shape": {"w": {"dtype": "U8", "data_offsets": [0, 12]}},
    "another field": {"w": {**GOOD, "x": 1}},
    "dtype is a number": {"w": {**GOOD, "dtype": 3}},
    "entry is a list": {"w": [1]},
    "metadata not strings": {"__metadata__": {"a": 1}, "w": GOOD},
    "metadata a list": {"__metadata__": [], "w": GOOD},
    "metadata null": {"__metadata__": None, "w": GOOD},
    "metadata nested": {"__metadata__": {"a": {"b": "c"}}, "w": GOOD},
    "deep": b'{"w":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "not an object": b"[1]",
    "space in front": b' {"w":{"dtype":"U8","shape":[12],"data_offsets":[0,12]}}',
    "not JSON": b'{"w":',
    "not UTF-8": b'{"\xff":{"dtype":"U8","shape":[12],"data_offsets":[0,12]}}',
    "two values": b'{"w":{"dtype":"U8","shape":[12],"data_offsets":[0,12]}} {}',
    "UTF-16": '{"w":{"dtype":"U8","shape":[12],"data_offsets":[0,12]}}'.encode("utf-16"),
    "empty": b"",
}


@pytest.mark.parametrize("table", BAD_STRUCTURE.values(), ids=BAD_STRUCTURE.keys())
def test_bad_structure_is_corrupt_and_names_the_file(table):
    with pytest.raises(Corrupt, match=r"x\.safetensors"):
        read(table)


@pytest.mark.parametrize("kind", ["size lies", "overlap", "hole between", "three offsets", "another field", "negative size"])
def test_the_tensor_is_named(kind):
    with pytest.raises(Corrupt, match="'w'"):
        read(BAD_STRUCTURE[kind])


HOSTILE = ["", "a\0b", "a\nb", "x" * 2000, "e\u0301", "\u202eabc", "\ud800", "a\x7f"]


@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name)[:20] for name in HOSTILE])
def test_hostile_names_are_refused(name):
    with pytest.raises(Invalid, match=r"x\.safetensors"):
        read({name: GOOD})


def test_a_name_that_looks_like_a_path_is_only_data():
    assert read({"../../etc/passwd": GOOD}).entries[0].name == "../../etc/passwd"


def test_unknown_dtype():
    with pytest.raises(Unsupported, match="'w' has the unknown dtype 'Q4'"):
        read({"w": {**GOOD, "dtype": "Q4"}})


def test_too_many_dimensions_and_elements():
    with pytest.raises(Invalid, match="impossible shape"):
        read({"w": {**GOOD, "shape": [1] * 17}})
    with pytest.raises(Invalid, match="impossible shape"):
        read({"w": {**GOOD, "shape": [2**40, 2**40]}})
    with pytest.raises(Invalid, match="whole bytes"):
        read({"w": {**GOOD, "dtype": "F4", "shape": [23]}})


@pytest.mark.parametrize(
    ("prefix", "file_bytes", "error"),
    [
        (b"\x01\0\0", 3, Corrupt),
        (struct.pack("<Q", 100), 107, Corrupt),
        (b"\xff" * 8, 1 << 40, Corrupt),
        (struct.pack("<Q", MAX_HEADER_BYTES), 1 << 40, Invalid),
    ],
)
def test_bad_lengths(prefix, file_bytes, error):
    with pytest.raises(error, match=r"x\.safetensors"):
        header_bytes(prefix, file_bytes, "x.safetensors")


def test_every_cut_of_a_file_is_refused():
    header = make_header([Tensor("w", DTYPES["BF16"], (2, 3)), Tensor("v", DTYPES["U8"], (3,))], {"a": "b"})
    for size in range(header.file_bytes):
        with pytest.raises((Corrupt, Invalid)):
            parse_header(header.raw[:size][: len(header.raw)], size, "x")


def test_every_flipped_bit_is_refused_or_means_something_else():
    header = make_header([Tensor("w", DTYPES["BF16"], (2, 3)), Tensor("v", DTYPES["U8"], (3,))], {"a": "b"})
    for position in range(len(header.raw) * 8):
        data = bytearray(header.raw)
        data[position // 8] ^= 1 << position % 8
        try:
            found = parse_header(bytes(data), header.file_bytes, "x")
        except WeightsyncError:
            continue
        # A flip in a name, a metadata value, the padding or between types of one size makes another good header of the same size.
        assert found.file_bytes == header.file_bytes
        assert [e.end - e.begin for e in found.entries] == [e.end - e.begin for e in header.entries]


@given(st.binary(max_size=200))
def test_noise_gives_typed_errors_only(text):
    with contextlib.suppress(WeightsyncError):
        read(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 20) | st.text(max_size=4) | st.sampled_from(["BF16", "U8"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "w", "__metadata__"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["w", "v", "__metadata__"]), json_values, max_size=3))
def test_odd_tables_give_typed_errors_only(table):
    with contextlib.suppress(WeightsyncError):
        read(table)


def test_making_refuses_what_reading_would():
    with pytest.raises(Invalid, match="twice"):
        make_header([Tensor("w", DTYPES["U8"], (1,))] * 2)
    with pytest.raises(Invalid, match="reserved"):
        make_header([Tensor("__metadata__", DTYPES["U8"], (1,))])
    with pytest.raises(Invalid):
        make_header([Tensor("a\0", DTYPES["U8"], (1,))])
