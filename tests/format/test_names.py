import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import Invalid
from weightsync.format.names import check_file, check_plain, check_tensor

HOSTILE_FILES = [
    *("", ".", "..", "../x", "x/..", "x/../y", "/x", "//x", "x//y", "x/", "./x", "\\x", "x\\y", "C:\\x", "c:x", "~/x", ".hidden", "x/.git"),
    *("CON", "con", "nul.txt", "aux.json", "COM1", "lpt9.x", "x/PRN", "x.", "x ", "x/y.", " x", "-x", "x\0", "x\n", "x\ty", "\x7f", "a:b"),
    *("a*b", "a?b", 'a"b', "a<b", "a|b", "é", "x/é", "x\u202ey", "%2e%2e/x", "x" * 201, "/".join("a" * 9)),
]


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_hostile_file_names_are_refused(name):
    with pytest.raises(Invalid, match="not allowed in a checkpoint"):
        check_file(name)


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model-00001-of-00002.safetensors",
        "a/b/c.txt",
        "tokenizer_config.json",
        "_x",
        "1",
        "x" * 200,
        "a b+c=d@e-f",
        "console",
    ],
)
def test_the_names_of_checkpoints_are_fine(name):
    assert check_file(name) == name


@given(st.text(max_size=40))
def test_an_accepted_file_stays_inside_its_directory(name):
    try:
        check_file(name)
    except Invalid:
        return
    assert name.isascii()
    assert not name.startswith(("/", "."))
    assert ".." not in name.split("/")
    assert "\\" not in name
    assert ":" not in name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 1025,
        "é" * 513,
        "a\0b",
        "a\nb",
        "a\tb",
        "\x7f",
        "a\u202eb",
        "a\u200bb",
        "\ud800",
        unicodedata.normalize("NFD", "é"),
        "\u212b",  # ANGSTROM SIGN: its normal form is another character
        "a\ufeffb",
    ],
)
def test_hostile_tensor_names_are_refused(name):
    with pytest.raises(Invalid, match="tensor name"):
        check_tensor(name)


@pytest.mark.parametrize(
    "name", ["a", "model.layers.0.self_attn.q_proj.weight", "../../etc/passwd", "a/b", "x" * 1024, "é", "重み", "a b", "CON"]
)
def test_a_tensor_name_is_data_not_a_path(name):
    assert check_tensor(name) == name


@given(st.text(max_size=60))
def test_an_accepted_tensor_name_has_one_spelling(name):
    try:
        check_tensor(name)
    except Invalid:
        return
    assert unicodedata.normalize("NFC", name) == name
    assert name.encode("utf-8").decode() == name
    assert name.isprintable()


@given(st.text(max_size=40))
def test_an_accepted_plain_name_is_one_safe_segment(name):
    try:
        check_plain(name, "run")
    except Invalid:
        return
    assert name.isascii()
    assert name[0].isalnum()
    assert "/" not in name
    assert ".." not in name


def test_a_long_culprit_is_cut():
    with pytest.raises(Invalid) as caught:
        check_plain("x" * 10_000, "run")
    assert len(str(caught.value)) < 300
