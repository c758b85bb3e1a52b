"""What is stored can be read by a reader that knows only `proto/FORMAT.md`; what was stored once stays readable."""

import ast
import json
from pathlib import Path

import pytest
from blake3 import blake3

from tests.codec import plain_reader
from tests.format import golden_store, independent_reader
from tests.format.independent_reader import Reader, Refused
from tests.publisher.checkpoints import make, step, tree
from weightsync.catalog import Catalog
from weightsync.replica.fetch import ShardSource
from weightsync.replica.restore import restore_version
from weightsync.store.file import FileStore

GOLDEN = Path(__file__).parent / "golden"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def fetch_from(root: Path):
    return lambda key: (root / key).read_bytes()


def read_all(reader: Reader) -> None:
    reader.head()
    for version in (1, 2, 3):
        reader.tensors(version)


@pytest.mark.parametrize("module", [independent_reader, plain_reader])
def test_the_second_reader_stands_on_its_own(module):
    for node in ast.walk(ast.parse(Path(module.__file__).read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not [name for name in names if name.split(".")[0] == "weightsync"]


def test_the_second_reader_reads_what_is_written_now(world, tmp_path):
    publisher = world.publisher()
    publisher.start()
    states = [make(seed=1, size=1100)]
    states += [step(states[0], seed=2), step(states[0], seed=3, share=0.8)]
    for weights in states:
        publisher.publish_checkpoint(world.checkpoint(weights))
    reader = Reader(lambda key: world.store.get(key, max_bytes=1 << 30).data, "run")
    assert reader.committed() == [1, 2, 3]
    assert reader.head()["version"] == 3
    for version, weights in enumerate(states, 1):
        assert reader.tensors(version) == {name: data for name, (_, _, data) in weights.items()}


def test_the_golden_store_by_the_second_reader():
    reader = Reader(fetch_from(GOLDEN / "store"), "run")
    assert [str(version) for version in reader.committed()] == list(EXPECTED)
    for version in reader.committed():
        assert golden_store.digests(reader.tensors(version)) == EXPECTED[str(version)]["tensors"]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_golden_store_by_this_release(version, tmp_path):
    catalog = Catalog(FileStore(GOLDEN / "store"), "run")
    restore_version(catalog, catalog.manifest_of(version), tmp_path / "out", ShardSource(catalog), threads=1)
    found = {name: blake3(data).hexdigest() for name, data in tree(tmp_path / "out").items()}
    assert found == EXPECTED[str(version)]["files"]


def test_the_second_reader_refuses_a_flipped_bit_in_any_object():
    root = GOLDEN / "store"
    for path in sorted(path for path in root.rglob("*") if path.is_file() and "/log/" not in str(path)):
        key, data = path.relative_to(root).as_posix(), bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        good = fetch_from(root)
        reader = Reader(lambda asked, key=key, bad=bytes(data), good=good: bad if asked == key else good(asked), "run")
        if "/files/" in key or key.endswith("run.json"):
            continue  # names and small files: this reader reads tensors only
        with pytest.raises((Refused, ValueError, KeyError)):
            read_all(reader)
