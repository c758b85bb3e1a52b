import pytest

from weightsync.errors import Corrupt, Unsupported
from weightsync.format.fields import Fields


def fields(**values) -> Fields:
    return Fields(values, "the record")


@pytest.mark.parametrize("value", [None, 1, "x", [], True])
def test_only_an_object_has_fields(value):
    with pytest.raises(Corrupt, match="the record is not an object"):
        Fields(value, "the record")


TAKERS = {
    "text": (lambda f: f.text("a"), "x", [1, None, True, [], {}]),
    "hex": (lambda f: f.hex("a", 4), "00ff", [1, None, "00f", "00fff", "00FF", "00fg", "", " 00f", "00f\n", "٠٠٠٠"]),
    "integer": (lambda f: f.integer("a", least=2), 2, ["2", None, True, 1, -1, [], 2.0]),
    "objects": (lambda f: f.objects("a"), [], ["x", None, {}, [1], [{}, []]]),
    "array": (lambda f: f.array("a"), [1], ["x", None, {}, 1]),
    "object": (lambda f: f.object("a"), {}, ["x", None, [], 1]),
    "mapping": (lambda f: f.mapping("a"), {"b": 1}, ["x", None, [], 1]),
}


@pytest.mark.parametrize("name", TAKERS)
def test_types_are_exact(name):
    take, good, bad = TAKERS[name]
    take(fields(a=good))
    for value in bad:
        with pytest.raises(Corrupt, match=r"the record"):
            take(fields(a=value))
    with pytest.raises(Corrupt, match="the record lacks 'a'"):
        take(fields(b=good))


def test_text_is_bounded():
    assert fields(a="x" * 5).text("a", max_chars=5) == "xxxxx"
    with pytest.raises(Corrupt, match="longer than 5"):
        fields(a="x" * 6).text("a", max_chars=5)
    with pytest.raises(Corrupt, match="longer than 4096"):
        fields(a="x" * 4097).text("a")


def test_null_is_taken_only_where_it_may_stand():
    assert fields(a=None).optional("a", fields(a=None).integer) is None
    given = fields(a=3)
    assert given.optional("a", given.integer) == 3
    given = fields()
    with pytest.raises(Corrupt, match="lacks"):
        given.optional("a", given.integer)


@pytest.mark.parametrize(("value", "error"), [("y", Unsupported), (1, Corrupt), (None, Corrupt)])
def test_a_constant_is_that_or_nothing(value, error):
    with pytest.raises(error):
        fields(a=value).constant("a", "x")
    fields(a="x").constant("a", "x")


def test_no_boolean_is_a_number():
    with pytest.raises(Corrupt):
        fields(a=True).constant("a", 1)


def test_every_field_must_be_known_unless_it_says_that_it_need_not_be():
    given = fields(a=1, b=2, **{"x-note": 3})
    given.integer("a")
    with pytest.raises(Unsupported, match=r"unknown field 'b'.*upgrade"):
        given.done()
    given.integer("b")
    given.done()


def test_a_field_is_taken_once():
    given = fields(a=1)
    given.integer("a")
    with pytest.raises(Corrupt, match="lacks"):
        given.integer("a")


def test_the_caller_keeps_its_object():
    value = {"a": 1}
    Fields(value, "x").integer("a")
    assert value == {"a": 1}
