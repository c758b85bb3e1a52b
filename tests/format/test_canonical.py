import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import Corrupt
from weightsync.format import canonical
from weightsync.format.limits import MAX_INTEGER

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_one_value_has_one_spelling(value):
    data = canonical.to_bytes(value)
    assert canonical.parse(data, "x") == value
    assert json.loads(data) == value


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b"1.0",
        b"1e3",
        b'{"a":1.5}',
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"-0",
        b"01",
        str(MAX_INTEGER + 1).encode(),
        str(-MAX_INTEGER - 1).encode(),
        b"1" * 5000,
        b'{"a": 1}',
        b' {"a":1}',
        b'{"a":1}\n',
        b'{"b":1,"a":2}',
        b'"\\u0041"',
        b'"\\/"',
        b'"\\ud800"',
        b'{"\\ud800":1}',
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b"'a'",
        b"{a:1}",
        b"[1,]",
        b"// x\n{}",
        b"",
        b"{",
        b'{"a":1}{"a":1}',
        b"undefined",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    ],
    ids=lambda data: repr(data[:24]),
)
def test_other_spellings_and_kinds_are_refused(data):
    with pytest.raises(Corrupt, match="the thing is not canonical JSON"):
        canonical.parse(data, "the thing")


@given(st.binary(max_size=64))
def test_junk_is_refused_with_a_typed_error(junk):
    try:
        value = canonical.parse(junk, "x")
    except Corrupt:
        return
    assert canonical.to_bytes(value) == junk


def test_keys_sort_by_utf16_as_the_standard_says():
    """U+1F600 sorts before U+FB33: its first UTF-16 unit is a surrogate."""
    assert canonical.to_bytes({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'.encode()
