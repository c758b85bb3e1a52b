"""`weightsync serve` as a process."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from tests.control.certificates import Authority
from tests.control.plane import RUN
from weightsync.catalog import Catalog
from weightsync.control.client import ControlClient
from weightsync.control.tls import ClientTls
from weightsync.errors import Unauthenticated, Unavailable, WeightsyncError
from weightsync.store.file import FileStore
from weightsync.testing.tiny_run import TinyRun

CANARY = "canary-5f1d7a9c0e"


@contextmanager
def serve(store, *arguments, **environment):
    command = [sys.executable, "-m", "weightsync", "serve", "--store", f"file://{store}", "--listen", "127.0.0.1:0", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, *arguments], text=True, env={**os.environ, **environment}, **pipes) as process:
        try:
            event = json.loads(process.stdout.readline())
            assert event["event"] == "listening"
            yield process, event["address"]
        finally:
            process.kill()


@pytest.fixture
def run(tmp_path):
    made = TinyRun(Catalog(FileStore(str(tmp_path / "store")), RUN, capability="full"))
    made.publish(2)
    return made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_drains_and_ends_well(tmp_path, run, number):
    with serve(tmp_path / "store") as (process, address), ControlClient(address) as client:
        stream = client.watch_fleet(RUN)
        next(stream)
        process.send_signal(number)
        with pytest.raises(Unavailable, match="this server stops"):
            list(stream)
        assert process.wait(20) == 0
        assert json.loads(process.stdout.read())["event"] == "stopped"


def test_nothing_secret_is_shown(tmp_path, run):
    """A planted canary: as a token, as a key, in a log, an error, an answer."""
    authority = Authority(tmp_path)
    certificate, key = authority.server()
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[tokens]]\ntoken = "{CANARY}-operator"\nrole = "operator"\nname = "op"\n')
    private = key.read_text().splitlines()[1]
    told = []
    flags = ["--tls-cert", certificate, "--tls-key", key, "--tokens", tokens, "--log-level", "debug", "--reflection"]
    with serve(tmp_path / "store", *map(str, flags)) as (process, address):
        tls = ClientTls(authority.path)
        with ControlClient(address, tls=tls, token=f"{CANARY}-operator") as client:
            told.append(repr(client.get_channel(RUN)))
            for call in (lambda: client.get_channel("nope"), lambda: client.register(RUN, CANARY[:3] + "/")):
                with pytest.raises(WeightsyncError) as caught:
                    call()
                told.append(f"{caught.value!r} {caught.value}")
        with ControlClient(address, tls=tls, token=f"{CANARY}-stranger") as client, pytest.raises(Unauthenticated) as caught:
            client.get_channel(RUN)
        told.append(f"{caught.value!r} {caught.value}")
        tokens.write_text(f'[[tokens\ntoken = "{CANARY}-broken"')
        with ControlClient(address, tls=tls, token=f"{CANARY}-operator") as client:
            client.get_channel(RUN)
        process.terminate()
        out, err = process.communicate(timeout=20)
    assert "not read again" in err
    text = " ".join([*told, out, err])
    assert CANARY not in text
    assert private not in text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--listen", "0.0.0.0:0"], "nobody would have to say who they are"),
        (["--listen", "0.0.0.0:0", "--anonymous", "reader"], "without TLS"),
        (["--tls-cert", "x"], "certificate and its key"),
        (["--client-ca", "x"], "certificate and its key"),
        (["--anonymous", "emperor"], "is no role"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--tokens", "none.toml"], "cannot be read"),
    ],
)
def test_what_it_refuses(tmp_path, flags, words):
    command = [sys.executable, "-m", "weightsync", "serve", "--store", f"file://{tmp_path}", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 2
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
