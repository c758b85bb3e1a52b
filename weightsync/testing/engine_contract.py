"""What every engine adapter must do.

An adapter's tests inherit `EngineContract` and give it a fixture `engine`, which serves version 1 of the fixture `scene`:

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def engine(self, scene):
            return MyEngine(...)            # with scene.weights[0], as scene.ref(1)

Override `scene` for a model of your own (see `EngineScene`), `ask` so that it is seen what is served, and `break_write` so that it is seen
what a failing write leaves. Needs pytest.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weightsync.engine.api import Engine, Mode
from weightsync.engine.change import discard_change, inverse
from weightsync.errors import Conflict, Corrupt, Dirty, Invalid, Unavailable, WeightsyncError
from weightsync.format.dtypes import DTYPES
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.testing.engine_scene import EngineScene

LIMIT_S = 20.0


class EngineContract:
    """Inherit, and override `engine`."""

    @pytest.fixture
    def scene(self, tmp_path: Path) -> Iterator[EngineScene]:
        """Versions 1 to 4 of a model; none is the same as another."""
        scene = EngineScene(tmp_path / "image")
        yield scene
        scene.close()

    @pytest.fixture
    def engine(self, scene: EngineScene) -> Engine:
        """The engine under test, which serves version 1."""
        raise NotImplementedError

    def ask(self, engine: Any) -> int:
        """The version that answers a request, as the answer is labelled. Raises `Unavailable` where the engine serves nothing."""
        pytest.skip(f"{type(engine).__name__} has no way to ask")

    def break_write(self, engine: Any, number: int) -> None:
        """Makes the next apply fail before its tensor `number`."""
        pytest.skip(f"{type(engine).__name__} has no way to break the write of tensor {number}")

    def serves(self, engine: Engine, scene: EngineScene, version: int) -> None:
        """Asserts that all live weights are those of a version, and are called so."""
        assert engine.version == scene.ref(version)
        live, expected = engine.sums(), scene.sums(version)
        assert live
        assert {name: live[name] for name in live} == {name: expected[name] for name in live}

    def test_it_serves_what_it_was_started_with(self, engine: Engine, scene: EngineScene) -> None:
        """Live sums are by tensor name of the layout."""
        self.serves(engine, scene, 1)
        assert set(engine.sums()) <= set(scene.sums(1))

    @pytest.mark.parametrize("mode", list(Mode))
    def test_a_change_is_applied(self, engine: Engine, scene: EngineScene, mode: Mode) -> None:
        """Staging changes nothing; applying writes each lane, and reads it back."""
        change = scene.change(1, 2)
        staged = engine.stage(change)
        self.serves(engine, scene, 1)
        applied = staged.apply(mode, limit_s=LIMIT_S)
        self.serves(engine, scene, 2)
        assert applied.version == scene.ref(2)
        assert applied.read_back == applied.written
        assert applied.written >= change.lanes > 0
        assert 0 <= applied.pause_s < LIMIT_S

    def test_what_was_discarded_leaves_no_trace(self, engine: Engine, scene: EngineScene) -> None:
        """Also not for what is staged next."""
        engine.stage(scene.change(1, 3)).discard()
        self.serves(engine, scene, 1)
        engine.stage(scene.change(1, 2)).apply(limit_s=LIMIT_S)
        self.serves(engine, scene, 2)

    def test_one_version_after_another_and_back(self, engine: Engine, scene: EngineScene) -> None:
        """Deltas, a jump over versions, a rollback from the past, and one by the inverse of what was just applied."""
        for base, version in ((1, 2), (2, 4), (4, 1), (1, 3)):
            engine.stage(scene.change(base, version)).apply(limit_s=LIMIT_S)
            self.serves(engine, scene, version)
        change = scene.change(3, 4)
        engine.stage(change).apply(limit_s=LIMIT_S)
        engine.stage(inverse(change)).apply(limit_s=LIMIT_S, prove=True)
        self.serves(engine, scene, 3)

    def test_a_whole_version_needs_no_base(self, engine: Engine, scene: EngineScene) -> None:
        """Everything comes from the image."""
        engine.stage(scene.change(None, 3)).apply(limit_s=LIMIT_S, prove=True)
        self.serves(engine, scene, 3)

    def test_the_same_weights_again_are_another_version(self, engine: Engine, scene: EngineScene) -> None:
        """Nothing is written, and the version goes on."""
        same = scene.add(scene.weights[0])
        change = scene.change(1, same)
        assert change.lanes == 0
        assert engine.stage(change).apply(limit_s=LIMIT_S, prove=True).written == 0
        self.serves(engine, scene, same)

    def test_a_change_from_another_version_is_refused(self, engine: Engine, scene: EngineScene) -> None:
        """It would make a mix."""
        with pytest.raises((Conflict, Invalid)):
            engine.stage(scene.change(2, 3)).apply(limit_s=LIMIT_S)
        self.serves(engine, scene, 1)

    def test_a_change_that_was_overtaken_is_refused(self, engine: Engine, scene: EngineScene) -> None:
        """A session that was given up for dead must not wake up later."""
        old = engine.stage(scene.change(1, 2))
        engine.stage(scene.change(1, 3)).apply(limit_s=LIMIT_S)
        with pytest.raises(WeightsyncError):
            old.apply(limit_s=LIMIT_S)
        self.serves(engine, scene, 3)

    def test_a_staged_change_is_used_once(self, engine: Engine, scene: EngineScene) -> None:
        """Applied or discarded."""
        staged = engine.stage(scene.change(1, 2))
        staged.apply(limit_s=LIMIT_S)
        with pytest.raises(WeightsyncError):
            staged.apply(limit_s=LIMIT_S)
        self.serves(engine, scene, 2)

    def test_a_staged_change_outlives_its_file(self, engine: Engine, scene: EngineScene) -> None:
        """The subscriber may be gone by the time it is applied, and a new one removes what it left."""
        change = scene.change(1, 2)
        staged = engine.stage(change)
        discard_change(change)
        staged.apply(limit_s=LIMIT_S)
        self.serves(engine, scene, 2)

    @pytest.mark.parametrize("defect", ["name", "shape", "dtype", "missing"])
    def test_what_does_not_fit_is_refused_before_anything_is_written(
        self, engine: Engine, scene: EngineScene, tmp_path: Path, defect: str
    ) -> None:
        """Another model."""
        other = EngineScene(tmp_path / "other", layout=_spoilt(scene, defect), versions=1)
        try:
            with pytest.raises(Invalid):
                engine.stage(other.change(None, 1))
        finally:
            other.close()
        self.serves(engine, scene, 1)

    def test_a_version_whose_sums_are_not_reached_is_not_served(self, engine: Engine, scene: EngineScene) -> None:
        """With `prove` that is found out before it resumes."""
        change = scene.change(1, 2)
        sums = change.sums.copy()
        sums[change.tensors[0].tensor] ^= 1
        staged = engine.stage(scene.forged(change, sums=sums))
        with pytest.raises((Corrupt, Dirty)) as found:
            staged.apply(limit_s=LIMIT_S, prove=True)
        if isinstance(found.value, Dirty):
            assert engine.version is None
            engine.reload(scene.change(None, 1), limit_s=LIMIT_S)
        self.serves(engine, scene, 1)

    def test_a_reload_is_the_way_out_of_doubt(self, engine: Engine, scene: EngineScene) -> None:
        """Whatever was served before."""
        applied = engine.reload(scene.change(None, 2), limit_s=LIMIT_S)
        assert applied.version == scene.ref(2)
        self.serves(engine, scene, 2)
        engine.stage(scene.change(2, 3)).apply(limit_s=LIMIT_S)
        self.serves(engine, scene, 3)

    def test_withdrawn_it_serves_nothing_and_admitted_it_does(self, engine: Engine, scene: EngineScene) -> None:
        """Requests are told to come back; weights can be changed meanwhile."""
        assert self.ask(engine) == 1
        engine.withdraw("a test")
        with pytest.raises(Unavailable):
            self.ask(engine)
        engine.stage(scene.change(1, 2)).apply(limit_s=LIMIT_S)
        with pytest.raises(Unavailable):
            self.ask(engine)
        engine.admit()
        assert self.ask(engine) == 2

    @pytest.mark.parametrize("number", [0, 1, 2])
    def test_a_write_that_fails_leaves_the_old_version_or_a_dirty_engine(self, engine: Engine, scene: EngineScene, number: int) -> None:
        """And never a mix that serves."""
        staged = engine.stage(scene.change(1, 2))
        self.break_write(engine, number)
        with pytest.raises(WeightsyncError) as found:
            staged.apply(limit_s=LIMIT_S)
        if isinstance(found.value, Dirty):
            assert engine.version is None
            with pytest.raises(Unavailable):
                self.ask(engine)
            engine.reload(scene.change(None, 1), limit_s=LIMIT_S)
            engine.admit()
        self.serves(engine, scene, 1)
        engine.stage(scene.change(1, 2)).apply(limit_s=LIMIT_S)
        self.serves(engine, scene, 2)


def _spoilt(scene: EngineScene, defect: str) -> Layout:
    tensors = list(scene.layout.tensors)
    victim = next(number for number, one in enumerate(tensors) if len(one.shape) == 2 and one.lanes)
    found, aliases = tensors[victim], scene.layout.aliases
    if defect == "missing":
        aliases = tuple(pair for pair in aliases if pair[1] != found.name)
        del tensors[victim]
    elif defect == "name":
        aliases = tuple(pair for pair in aliases if pair[1] != found.name)
        tensors[victim] = Tensor(f"{found.name}.other", found.dtype, found.shape)
    elif defect == "shape":
        tensors[victim] = Tensor(found.name, found.dtype, (found.shape[1] + 1, found.shape[0]))
    else:
        tensors[victim] = Tensor(found.name, DTYPES["F16" if found.dtype.name != "F16" else "BF16"], found.shape)
    return make_layout(tensors, aliases, chunk_lanes=scene.layout.chunk_lanes)
