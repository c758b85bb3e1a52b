"""Help that teaches by examples, a start that costs nothing, and a bar only for who watches."""

import os
import re
import subprocess
import sys

import pytest

from weightsync.cli import main
from weightsync.cli.app import VERBS, run


def test_all_verbs_are_listed_with_a_whole_sentence(capsys):
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in VERBS:
        assert re.search(rf"^  {verb} +[A-Z].*\.$", text, re.MULTILINE), verb
    assert "..." not in text.split("Commands:")[1]


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_shows_numbered_examples(verb, capsys):
    assert run([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"Examples:\n +1\. .*\n +weightsync {verb}", text)
    assert "--json" in text


def test_nothing_to_do_shows_help_and_is_used_wrong(capsys):
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().out


def test_help_imports_nothing_heavy(cli):
    code = (
        "import sys; from weightsync.cli.app import run; run(['--help']);"
        "heavy = {'numpy', 'torch', 'boto3', 'botocore', 'pydantic', 'rich', 'cryptography', 'zstandard', 'asyncio', 'weightsync.codec'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=cli.env, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_interruption_while_modules_load_is_no_traceback(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("weightsync.cli.app.run", interrupted)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 130
    assert "error: stopped" in capsys.readouterr().err


def test_the_version(cli):
    assert cli("--version").out.startswith("weightsync")


def test_flags_that_scripts_rely_on(capsys):
    promised = {
        "publish": ("CKPT", "--store", "--run", "--cache", "--watch"),
        "subscribe": ("--store", "--run", "--channel", "--out", "--once"),
        "restore": ("--store", "--run", "--version", "--out"),
        "verify": ("--store", "--run", "--version", "--checkpoint"),
        "versions": ("--store", "--run", "--json"),
        "rollback": ("--store", "--run", "--channel", "--to"),
        "demo": ("--json", "--checkpoints"),
    }
    for verb, flags in promised.items():
        run([verb, "--help"])
        text = capsys.readouterr().out
        assert [flag for flag in flags if flag not in text] == [], verb


def on_a_terminal(cli, *arguments: object) -> tuple[str, str]:
    """Standard output, and what a terminal as standard error saw."""
    ours, theirs = os.openpty()
    try:
        done = subprocess.run(
            cli.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
            env=cli.env | {"TERM": "xterm"},
            cwd=cli.home,
            check=True,
        )
        os.write(theirs, b"end")
        seen = b""
        while not seen.endswith(b"end"):
            seen += os.read(ours, 1 << 16)
    finally:
        os.close(ours)
        os.close(theirs)
    return done.stdout, seen.decode()


def test_a_bar_is_for_who_watches(cli, shared, tmp_path):
    out, terminal = on_a_terminal(cli, "restore", "--version", 1, "--out", tmp_path / "a", *shared.at)
    assert out.startswith("version 1: 4 files")
    assert "\x1b[" in terminal
    _, terminal = on_a_terminal(cli, "restore", "--version", 1, "--out", tmp_path / "b", *shared.at, "--json")
    assert terminal == "end"
    assert cli("restore", "--version", 1, "--out", tmp_path / "c", *shared.at).err == ""
