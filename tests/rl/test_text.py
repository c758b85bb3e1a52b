import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import Invalid
from weightsync.rl.text import END, VOCABULARY, decode, encode, printable

ASCII = st.text(st.characters(min_codepoint=1, max_codepoint=127))


@given(ASCII)
def test_text_comes_back(text):
    tokens = encode(text)
    assert decode(tokens) == text
    assert tokens.dtype == "int32"
    assert ((tokens > END) & (tokens < VOCABULARY)).all()


@given(st.lists(st.integers(1, 127)))
def test_tokens_come_back(tokens):
    assert encode(decode(tokens)).tolist() == tokens


def test_the_end_of_a_turn_is_not_text():
    assert decode([65, END, 66, END]) == "AB"


@pytest.mark.parametrize("text", ["\0", "a\0", "café", "\x80"])
def test_what_is_not_in_the_vocabulary_is_refused(text):
    with pytest.raises(Invalid, match="vocabulary"):
        encode(text)


@pytest.mark.parametrize("tokens", [[128], [-1], [5, 1000]])
def test_tokens_out_of_the_vocabulary_are_refused(tokens):
    with pytest.raises(Invalid, match="vocabulary"):
        decode(tokens)


@given(st.text())
def test_anything_can_be_made_printable(text):
    assert len(encode(printable(text))) == len(text)
