import json
import os
import struct

import numpy as np
import pytest

from tests.publisher.checkpoints import file_bytes, make, tree, write
from weightsync.errors import Corrupt, Denied, Invalid, NotFound, Unsupported
from weightsync.publisher.checkpoint import open_checkpoint
from weightsync.publisher.source import Chunking


def content(source):
    """All tensors of a source, read chunk by chunk."""
    found = {tensor.name: bytearray() for tensor in source.layout.tensors}
    buffer = memoryview(bytearray(1 << 20))
    for chunk in source.layout.chunks:
        found[source.layout.tensors[chunk.tensor].name] += source.read(chunk, buffer)
    return {name: bytes(data) for name, data in found.items()}


def test_a_directory_is_read_exactly_and_left_as_it_was(tmp_path):
    weights = make()
    path = write(tmp_path / "checkpoint", weights)
    before = tree(path)
    source = open_checkpoint(path, Chunking(1024))
    assert content(source) == {name: data for name, (_, _, data) in weights.items()}
    assert {t.name: (t.dtype.name, t.shape) for t in source.layout.tensors} == {n: (k, s) for n, (k, s, _) in weights.items()}
    assert [f.name for f in source.files.tensors] == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    assert {f.name for f in source.files.small} == {
        "additional_chat_templates/tool.jinja",
        "config.json",
        "model.safetensors.index.json",
        "tokenizer.json",
    }
    assert {ref.digest for ref, _ in source.objects} == {f.ref.digest for f in (*source.files.small, *source.files.tensors)}
    source.check_unchanged()
    source.close()
    assert tree(path) == before


def test_one_file_is_a_checkpoint_too(tmp_path):
    weights = make()
    path = tmp_path / "weights.safetensors"
    path.write_bytes(file_bytes(weights))
    source = open_checkpoint(path)
    assert content(source) == {name: data for name, (_, _, data) in weights.items()}
    assert [f.name for f in source.files.tensors] == ["weights.safetensors"]
    source.close()


def test_what_is_left_out_is_said(tmp_path):
    path = write(tmp_path / "c", make())
    (path / "optimizer.pt").write_bytes(b"pickle")
    (path / "leftover.safetensors").write_bytes(b"not even one")
    (path / ".cache").write_bytes(b"hidden")
    (path / "checkpoint-7").mkdir()
    (path / "checkpoint-7" / "model.safetensors").write_bytes(b"another")
    with (path / "huge.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    source = open_checkpoint(path)
    assert len(source.notes) == 4
    for name in ("optimizer.pt", "leftover.safetensors", "checkpoint-7", "huge.json"):
        assert any(name in note for note in source.notes)
    assert not any(name.name.startswith(".") for name in source.files.small)
    source.close()


def index(path, change):
    file = path / "model.safetensors.index.json"
    value = json.loads(file.read_text())
    change(value["weight_map"])
    file.write_text(json.dumps(value))


def header(path, text):
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(64))


def entry(**changes):
    return json.dumps({"w": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64], **changes}}).encode()


def replaced(path, make):
    path.unlink()
    make(path)


def dangling(path):
    path.symlink_to("gone")


BAD_DIRECTORIES = [
    ("missing shard", lambda p: (p / "model-00002-of-00003.safetensors").unlink(), NotFound, "model-00002-of-00003.safetensors"),
    ("extra in index", lambda p: index(p, lambda m: m.update(ghost="model-00001-of-00003.safetensors")), Invalid, "ghost"),
    ("missing in index", lambda p: index(p, lambda m: m.pop("scalar")), Invalid, "scalar"),
    (
        "wrong place in index",
        lambda p: index(p, lambda m: m.update(scalar=next(f for f in sorted(set(m.values())) if f != m["scalar"]))),
        Invalid,
        "scalar",
    ),
    ("path in index", lambda p: index(p, lambda m: m.update(scalar="../x.safetensors")), Invalid, "../x.safetensors"),
    ("index not json", lambda p: (p / "model.safetensors.index.json").write_text("{"), Invalid, "index"),
    ("index without map", lambda p: (p / "model.safetensors.index.json").write_text("{}"), Invalid, "weight_map"),
    ("index twice", lambda p: (p / "b.safetensors.index.json").write_text("{}"), Invalid, "two indexes"),
    ("cut shard", lambda p: os.truncate(p / "model-00003-of-00003.safetensors", 2000), Corrupt, "model-00003-of-00003.safetensors"),
    ("shard is a FIFO", lambda p: replaced(p / "model-00002-of-00003.safetensors", os.mkfifo), Invalid, "model-00002-of-00003.safetensors"),
    ("index is a link to nothing", lambda p: replaced(p / "model.safetensors.index.json", dangling), Invalid, "index"),
    ("without index, a shard is a link to nothing", lambda p: (p / "x.safetensors").symlink_to("gone"), Invalid, "x.safetensors"),
    ("names by case", lambda p: (p / "CONFIG.json").write_text("{}"), Invalid, "CONFIG.json"),
    ("hostile file name", lambda p: (p / "a\nb.json").write_text("{}"), Invalid, "a\\nb.json"),
]


@pytest.mark.parametrize(("damage", "error", "culprit"), [case[1:] for case in BAD_DIRECTORIES], ids=[case[0] for case in BAD_DIRECTORIES])
def test_a_bad_directory_is_refused_by_name(tmp_path, damage, error, culprit):
    path = write(tmp_path / "c", make())
    damage(path)
    with pytest.raises(error) as caught:
        open_checkpoint(path)
    assert culprit in str(caught.value)


BAD_FILES = [
    ("empty", b"", Corrupt, "too short"),
    ("header longer than the file", struct.pack("<Q", 1 << 40) + b"{}", Corrupt, "cut"),
    ("not json", struct.pack("<Q", 2) + b"{x", Corrupt, "header"),
    ("no tensors", struct.pack("<Q", 2) + b"{}", Invalid, "no tensors"),
    (
        "name twice",
        b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        Corrupt,
        "'w'",
    ),
    ("lying size", entry(data_offsets=[0, 60]), Corrupt, "'w'"),
    ("lying shape", entry(shape=[4, 9]), Corrupt, "'w'"),
    ("overflowing shape", entry(shape=[1 << 40, 1 << 40]), Invalid, "'w'"),
    ("negative offset", entry(data_offsets=[-64, 0]), Corrupt, "'w'"),
    ("hole", entry(data_offsets=[8, 72]), Corrupt, "'w'"),
    ("unknown dtype", entry(dtype="F6"), Unsupported, "F6"),
    ("hostile name", json.dumps({"a\u202eb": json.loads(entry())["w"]}).encode(), Invalid, "print"),
    ("name not normal", json.dumps({"e\u0301": json.loads(entry())["w"]}, ensure_ascii=False).encode(), Invalid, "normal form"),
]


@pytest.mark.parametrize(("text", "error", "culprit"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_a_bad_file_is_refused_by_name(tmp_path, text, error, culprit):
    if text.startswith(b"{"):
        header(tmp_path, text)
    else:
        (tmp_path / "model.safetensors").write_bytes(text)
    with pytest.raises(error) as caught:
        open_checkpoint(tmp_path)
    assert culprit in str(caught.value)
    assert "model.safetensors" in str(caught.value) or "no tensors" in str(caught.value)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    path = write(tmp_path / "c", make(), index=False)
    (path / "more.safetensors").write_bytes(file_bytes({"scalar": make()["scalar"]}))
    with pytest.raises(Invalid, match=r"'scalar' stands in .* and in 'more.safetensors'|'scalar' stands in 'more.safetensors'"):
        open_checkpoint(path)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(NotFound, match="nowhere"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(Invalid, match="no safetensors file"):
        open_checkpoint(tmp_path)
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(Invalid, match=r"x\.txt"):
        open_checkpoint(tmp_path / "x.txt")
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises((Invalid, NotFound), match=r"model\.safetensors|no safetensors"):
        open_checkpoint(tmp_path / "model.safetensors")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path):
    path = write(tmp_path / "c", make())
    (path / "config.json").chmod(0)
    with pytest.raises(Denied, match=r"config\.json"):
        open_checkpoint(path)


def test_a_file_cut_while_it_is_read_is_refused_and_kills_nobody(tmp_path):
    path = write(tmp_path / "c", make(size=50_000), shards=1)
    source = open_checkpoint(path, Chunking(1024))
    os.truncate(path / "model.safetensors", 30_000)
    with pytest.raises(Invalid, match=r"model\.safetensors.* was cut"):
        content(source)
    source.close()


def test_a_file_written_while_it_is_read_is_noticed(tmp_path):
    path = write(tmp_path / "c", make(), shards=1)
    source = open_checkpoint(path)
    content(source)
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    os.utime(path / "model.safetensors", ns=(1, 1))
    with pytest.raises(Invalid, match="mix two states"):
        source.check_unchanged()
    source.close()


def test_a_file_replaced_by_rename_is_read_on_as_it_was(tmp_path):
    weights = make()
    path = write(tmp_path / "c", weights, shards=1)
    source = open_checkpoint(path)
    (tmp_path / "new").write_bytes(file_bytes(make(1)))
    (tmp_path / "new").rename(path / "model.safetensors")
    assert content(source) == {name: data for name, (_, _, data) in weights.items()}
    source.check_unchanged()
    source.close()


def test_sixty_thousand_tensors_open(tmp_path):
    weights = {f"layer.{n}": ("U8", (1,), bytes([n % 256])) for n in range(60_000)}
    (tmp_path / "model.safetensors").write_bytes(file_bytes(weights))
    source = open_checkpoint(tmp_path)
    assert len(source.layout.tensors) == 60_000
    into = memoryview(bytearray(1))
    number = source.layout.index["layer.37777"]
    assert bytes(source.read(source.layout.chunks[number], into)) == bytes([37777 % 256])
    source.close()


def test_special_values_are_only_bits(tmp_path):
    lanes = np.arange(1 << 16, dtype="<u2")
    (tmp_path / "model.safetensors").write_bytes(file_bytes({"all": ("BF16", (256, 256), lanes.tobytes())}))
    source = open_checkpoint(tmp_path)
    assert content(source)["all"] == lanes.tobytes()
    source.close()


def test_a_small_file_that_is_none_is_left_out_with_a_note(tmp_path):
    path = write(tmp_path / "c", make())
    dangling(path / "extra.json")
    os.mkfifo(path / "pipe.json")
    source = open_checkpoint(path)
    assert [note.split()[0] for note in source.notes] == ["extra.json", "pipe.json"]
    source.close()
