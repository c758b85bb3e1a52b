import os
from pathlib import Path

import pytest

from weightsync.config import MAX_SETTINGS_BYTES, load, read_text
from weightsync.errors import Invalid, NotFound


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """A home directory without settings, and no WEIGHTSYNC_* variable."""
    for name in ("CONFIG", "STORE", "RUN", "CACHE", "LOG_LEVEL", "LOG_JSON"):
        monkeypatch.delenv(f"WEIGHTSYNC_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_defaults(home):
    settings = load()
    assert settings.store is None
    assert settings.cache == home / "cache" / "weightsync"


def test_a_relative_xdg_directory_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert load().cache == Path.home() / ".cache" / "weightsync"


def test_flags_beat_the_environment_which_beats_the_file(home, monkeypatch):
    write(home / "config" / "weightsync" / "config.toml", 'store = "file:///file"\nrun = "file"\nlog_level = "debug"\n')
    monkeypatch.setenv("WEIGHTSYNC_STORE", "file:///env")
    monkeypatch.setenv("WEIGHTSYNC_RUN", "env")
    settings = load(store="file:///flag", run=None)
    assert (settings.store, settings.run, settings.log_level) == ("file:///flag", "env", "debug")


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("WEIGHTSYNC_RUN", "")
    assert load().run is None


def test_a_named_file_is_read(home, monkeypatch):
    monkeypatch.setenv("WEIGHTSYNC_CONFIG", str(write(home / "a.toml", 'run = "a"')))
    assert load().run == "a"
    assert load(config=write(home / "b.toml", 'run = "b"')).run == "b"


def test_a_named_file_that_is_missing_is_an_error(home):
    with pytest.raises(NotFound, match="nowhere"):
        load(config=home / "nowhere.toml")


def test_settings_cannot_be_changed():
    settings = load()
    with pytest.raises(ValueError, match="frozen"):
        settings.run = "other"


@pytest.mark.parametrize(("text", "culprit"), [("strore = 'x'", "strore"), ("log_level = 'loud'", "log_level"), ("run = ", "TOML")])
def test_what_cannot_be_used_is_named(home, text, culprit):
    with pytest.raises(Invalid, match=culprit):
        load(config=write(home / "bad.toml", text))


def test_a_refused_value_is_not_repeated():
    with pytest.raises(Invalid) as caught:
        load(log_level="hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a=" + b"[" * 100_000])
def test_a_settings_file_that_is_no_toml_is_named(home, content):
    (home / "bad.toml").write_bytes(content)
    with pytest.raises(Invalid, match="not TOML"):
        load(config=home / "bad.toml")


def test_key_files_are_read_without_waiting_and_without_end(home):
    os.mkfifo(home / "fifo")
    assert read_text(home / "fifo") == ""
    for endless in ("/dev/zero", "/dev/urandom"):
        with pytest.raises(Invalid, match="plain file"):
            read_text(Path(endless))
    (home / "huge").write_bytes(b"x" * (MAX_SETTINGS_BYTES + 1))
    with pytest.raises(Invalid, match="more than"):
        read_text(home / "huge")


def test_a_key_may_come_through_a_pipe():
    out, into = os.pipe()
    os.write(into, b"secret")
    os.close(into)
    assert read_text(Path(f"/dev/fd/{out}")) == "secret"
    os.close(out)
