"""An engine of several processes: what a killed worker leaves is never served."""

from collections.abc import Iterator

import pytest

from weightsync.engine.api import Engine
from weightsync.engine.changes import Changes
from weightsync.engine.session import Swapper
from weightsync.errors import Dirty, Unavailable
from weightsync.testing.engine_contract import EngineContract
from weightsync.testing.engine_scene import EngineScene
from weightsync.testing.rank_engine import RankEngine


class TestRanks(EngineContract):
    @pytest.fixture
    def engine(self, scene: EngineScene) -> Iterator[Engine]:
        engine = RankEngine(scene.replica.path, scene.ref(1), scene.layout)
        yield engine
        engine.close()

    def ask(self, engine: RankEngine) -> int:
        return engine.ask()[0]

    def break_write(self, engine: RankEngine, number: int) -> None:
        engine.die_at = (number % 2, number)


@pytest.mark.parametrize(("rank", "tensor"), [(0, 0), (1, 1), (2, 2)])
def test_a_worker_that_is_killed_in_the_middle_takes_the_engine_out_until_it_is_whole(tmp_path, rank, tensor):
    scene = EngineScene(tmp_path / "image")
    engine = RankEngine(scene.replica.path, scene.ref(1), scene.layout, ranks=3)
    try:
        said = {1: engine.ask()[1]}
        staged = engine.stage(scene.change(1, 2))
        engine.die_at = (rank, tensor)
        with pytest.raises(Dirty):
            staged.apply()
        with pytest.raises(Unavailable):
            engine.ask()
        engine.reload(scene.change(None, 2))
        engine.admit()
        said[2] = engine.ask()[1]
        assert said[2] != said[1]
        swapper = Swapper({"ranks": engine})
        scene.go(3)
        engine.die_at = (rank, tensor)
        with Changes(scene.replica) as changes:
            assert swapper.swap(changes).reloaded == ("ranks",)  # healed on the way
        assert engine.ask()[0] == 3
        assert engine.sums() == scene.sums(3)
        scene.go(2)
        with Changes(scene.replica) as changes:
            assert swapper.swap(changes).reloaded == ()
        assert engine.ask() == (2, said[2])
        swapper.close()
    finally:
        engine.close()
        scene.close()
