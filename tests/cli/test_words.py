import numpy as np
import pytest

from weightsync.cli import words
from weightsync.cli.difference import Difference, compare, total
from weightsync.cli.output import Output, table_lines
from weightsync.cli.verify_report import spans
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Tensor, make_layout


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (45_678, "45.7 kB"), (999_999, "1 MB"), (2 * 10**12, "2 TB"), (10**18, "1000 PB")],
)
def test_sizes(nbytes, text):
    assert words.size(nbytes) == text


def test_shares_and_ratios():
    assert words.percent(114, 10_000) == "1.14 %"
    assert words.percent(0, 0) == "-"
    assert words.ratio(8_800_000, 44_000) == "200x"
    assert words.ratio(100, 68) == "1.5x"
    assert words.ratio(100, 0) == "-"


@pytest.mark.parametrize(("past_s", "text"), [(-3, "0 s"), (12, "12 s"), (300, "5 min"), (10_800, "3 h"), (864_000, "10 d")])
def test_ages(past_s, text):
    assert words.age(past_s) == text


def test_a_table_lines_up():
    assert table_lines(("name", "n"), [("a", "1"), ("bcdef", "22")]) == ["name    n", "a       1", "bcdef  22"]


@pytest.mark.parametrize(("numbers", "text"), [([2], "version 2"), ([2, 3, 4], "versions 2 to 4"), ([1, 3, 4, 9], "versions 1, 3 to 4, 9")])
def test_spans(numbers, text):
    assert spans(numbers) == text


@pytest.mark.parametrize("as_json", [False, True])
def test_long_work_tells_of_itself_where_no_terminal_watches(as_json, capfd):
    out, seen = Output(as_json=as_json, line_s=0.001), ""
    with out.progress("version 7") as advance:
        advance(1000, 4000)
        while not as_json and "25.00 %" not in seen:
            seen += capfd.readouterr().err
    assert ("version 7: 25.00 % of 4 kB, " in seen) == (not as_json)
    assert not (as_json and capfd.readouterr().err)


class Side:
    def __init__(self, layout, data):
        self.layout, self.data = layout, data

    def read(self, chunk):
        return self.data[chunk.offset : chunk.offset + chunk.nbytes]


def difference(dtype: str, old, new) -> Difference:
    layout = make_layout([Tensor("t", DTYPES[dtype], (len(old),))])
    (found,) = compare(Side(layout, old.tobytes()), Side(layout, new.tobytes()))
    return found


def test_ulp_distances_of_floats_count_representable_values():
    old = np.array([1.0, -0.0, 5.0, -1.0], np.float32)
    new = np.array([np.nextafter(np.float32(1), np.float32(2)), 0.0, 5.0, 1.0], np.float32)
    found = difference("F32", old, new)
    assert (found.changed, found.lanes) == (3, 4)
    assert found.to_json()["ulps"]["1"] == 2  # -0.0 and 0.0 are neighbours
    assert found.largest == 2 * 0x3F800000 + 1


@pytest.mark.parametrize(("dtype", "kind"), [("I64", np.int64), ("U64", np.uint64), ("I8", np.int8), ("U8", np.uint8)])
def test_distances_of_integers_do_not_overflow(dtype, kind):
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    found = difference(dtype, np.array([least], kind), np.array([most], kind))
    assert found.largest == int(most) - int(least)


def test_totals_add_up():
    a = difference("U8", np.array([1, 2, 3], np.uint8), np.array([2, 2, 3], np.uint8))
    b = difference("U8", np.array([1, 2], np.uint8), np.array([5, 9], np.uint8))
    whole = total([a, b])
    assert (whole.lanes, whole.changed, whole.largest) == (5, 3, 7)
    assert whole.ulps.sum() == 3


def test_tensors_that_only_one_side_has_are_left_out():
    old, new = (
        make_layout([Tensor("a", DTYPES["U8"], (1,))]),
        make_layout([Tensor("a", DTYPES["U8"], (1,)), Tensor("b", DTYPES["U8"], (1,))]),
    )
    assert [one.name for one in compare(Side(old, bytes(1)), Side(new, bytes(65)))] == ["a"]
