"""Every adapter that needs no engine's environment against the same contract."""

import pytest

from weightsync.engine.api import Engine
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
