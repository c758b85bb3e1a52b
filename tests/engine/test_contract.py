"""Every adapter that needs no engine's environment against the same contract."""

from collections.abc import Iterator

import pytest

from weightsync.engine.api import Engine
from weightsync.engine.directory import DirectoryEngine, write_safetensors
from weightsync.errors import Corrupt, NoSpace, Unavailable
from weightsync.testing.engine_contract import EngineContract
from weightsync.testing.engine_scene import EngineScene
from weightsync.testing.memory_engine import MemoryEngine


class TestMemory(EngineContract):
    @pytest.fixture
    def engine(self, scene: EngineScene) -> Engine:
        return MemoryEngine(scene.layout, scene.weights[0], scene.ref(1))

    def ask(self, engine: MemoryEngine) -> int:
        return engine.ask().versions[0]

    def break_write(self, engine: MemoryEngine, number: int) -> None:
        engine.faults.arm("write", at=number)


class TestMemoryThatCannotGoBack(TestMemory):
    def break_write(self, engine: MemoryEngine, number: int) -> None:
        engine.faults.arm("write", at=number)
        engine.faults.arm("undo")


class TestDirectory(EngineContract):
    @pytest.fixture
    def engine(self, scene: EngineScene, tmp_path) -> Iterator[Engine]:
        self.place, self.failing, self.at = tmp_path / "out", None, 0
        engine = DirectoryEngine(self.place, keep=3, write=self.write)
        engine.reload(scene.change(None, 1))
        yield engine
        engine.close()

    def write(self, change, target):
        if self.failing is not None:
            error, self.failing = self.failing, None
            raise error
        write_safetensors(change, target)

    def ask(self, engine: DirectoryEngine) -> int:
        link = self.place / "current"
        if not link.exists():
            raise Unavailable("nothing to load")
        return int(link.readlink().name)

    def break_write(self, engine: DirectoryEngine, number: int) -> None:
        pytest.skip("all is written before it is applied; see below")

    test_what_does_not_fit_is_refused_before_anything_is_written = None  # a directory holds any model

    def test_a_version_whose_sums_are_not_reached_is_not_served(self, engine, scene) -> None:
        change = scene.change(1, 2)
        sums = change.sums.copy()
        sums[0] ^= 1
        with pytest.raises(Corrupt):
            engine.stage(scene.forged(change, sums=sums))
        self.serves(engine, scene, 1)
        assert self.ask(engine) == 1

    def test_a_disk_that_is_full_leaves_what_was_there(self, engine, scene) -> None:
        self.failing = NoSpace("full")
        with pytest.raises(NoSpace):
            engine.stage(scene.change(1, 2))
        self.serves(engine, scene, 1)
        engine.stage(scene.change(1, 2)).apply()
        assert self.ask(engine) == 2

    def test_meddling_with_the_files_is_seen_and_healed(self, engine, scene) -> None:
        file = self.place / "current" / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        assert engine.sums() != scene.sums(1)
        engine.reload(scene.change(None, 1))
        self.serves(engine, scene, 1)
