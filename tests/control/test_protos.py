"""The protos: a change that breaks clients is refused, and every message that shall mirror a record does."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUF = Path(sys.executable).parent / "buf"


def breaking(directory: Path) -> subprocess.CompletedProcess:
    command = [BUF, "breaking", directory, "--against", ROOT / "proto" / "released.binpb"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def protos(tmp_path):
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    return tmp_path / "proto"


def edit(protos: Path, file: str, old: str, new: str) -> None:
    path = protos / "weightsync/v1" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_protos_as_they_are_break_nothing(protos):
    assert breaking(protos).returncode == 0


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("versions.proto", "uint64 version = 2;", "string version = 2;"),
        ("versions.proto", "uint64 version = 2;", "uint64 version = 9;"),
        ("fleet.proto", "uint64 pause_us = 7;", "uint64 pause_ms = 7;"),
        ("errors.proto", "  string remedy = 3;\n", ""),
        ("channels.proto", "rpc MoveChannel", "rpc MoveAChannel"),
        ("fleet.proto", "STAGE_APPLY = 5", "STAGE_SWAP = 5"),
    ],
)
def test_a_changed_field_is_refused(protos, file, old, new):
    edit(protos, file, old, new)
    assert breaking(protos).returncode != 0


def test_a_new_field_is_fine(protos):
    edit(protos, "versions.proto", "  // Number of the version, from 1.\n  uint64 version = 2;", "  uint64 version = 2;\n  bool more = 3;")
    assert breaking(protos).returncode == 0
