import ast
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import weightsync
from weightsync import failpoints
from weightsync.errors import Invalid
from weightsync.failpoints import VARIABLE, failpoint, parse

PACKAGE = Path(weightsync.__file__).parent


def calls() -> set[str]:
    """The names given to `failpoint(...)` anywhere in the package; a name that is not a literal counts as its source text."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "failpoint":
                argument = node.args[0]
                found.add(argument.value if isinstance(argument, ast.Constant) else ast.unparse(argument))
    return found


def test_every_call_names_a_registered_point_and_every_point_has_a_call():
    assert calls() == set(failpoints.POINTS)


def test_nothing_happens_when_unset():
    failpoint("no.such.point")


def test_raise_gives_the_errno_on_the_chosen_pass_only():
    rule = parse("a.b=raise:ENOSPC@2", {"a.b"})["a.b"]
    rule.hit()
    with pytest.raises(OSError, match=r"a\.b") as caught:
        rule.hit()
    rule.hit()
    assert caught.value.errno == errno.ENOSPC


def test_without_a_number_every_pass_acts():
    rule = parse("a=raise:EIO", {"a"})["a"]
    for _ in range(2):
        with pytest.raises(OSError, match="failpoint a"):
            rule.hit()


def test_an_armed_failpoint_acts(monkeypatch):
    monkeypatch.setattr(failpoints, "_armed", parse("a=raise:EIO", {"a"}))
    failpoint("b")
    with pytest.raises(OSError, match="failpoint a"):
        failpoint("a")


def test_kill_ends_the_process_by_sigkill():
    code = "from weightsync.failpoints import parse; parse('a=kill', {'a'})['a'].hit()"
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "text",
    ["a", "a=", "a=explode", "a=kill@0", "a=kill@x", "a=raise:ENOSUCH", "a=raise", "a=sleep:", "a=sleep:-1", "other=kill", "a=kill,a=kill"],
)
def test_what_cannot_be_read_is_refused(text):
    with pytest.raises(Invalid):
        parse(text, {"a"})


def test_several_rules_and_blanks():
    assert set(parse(" a=kill , b=sleep:0,", {"a", "b"})) == {"a", "b"}


def test_a_misspelt_name_in_the_environment_stops_the_import():
    env = {**os.environ, VARIABLE: "no.such.point=kill"}
    ended = subprocess.run([sys.executable, "-c", "import weightsync.failpoints"], env=env, check=False, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "no.such.point" in ended.stderr
