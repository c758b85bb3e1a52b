"""A torch module against the contract of engines; as it is, on plain torch operations, and with wider parameters."""

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from weightsync.engine.api import Engine, Mode
from weightsync.engine.gate import Gate
from weightsync.engine.inplace import plan as plans
from weightsync.engine.inplace.lanes import DeviceLanes
from weightsync.engine.torch_module import TorchModuleEngine
from weightsync.errors import Corrupt, Dirty, Invalid, Unavailable
from weightsync.format.dtypes import DTYPES as KINDS
from weightsync.format.layout import Layout, Tensor, make_layout
from weightsync.testing.engine_contract import EngineContract
from weightsync.testing.engine_scene import EngineScene

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def module_of(layout: Layout, weights: dict[str, np.ndarray], dtype: torch.dtype | None = None) -> nn.Module:
    """A module with the names, shapes and ties of the layout; parameters of `dtype`, where that is given."""
    root = nn.Module()
    made: dict[str, nn.Parameter] = {}
    for tensor in layout.tensors:
        bits = torch.from_numpy(weights[tensor.name].copy().view(f"<i{tensor.dtype.lane_bytes}"))
        value = bits.view(DTYPES[tensor.dtype.name]).reshape(tensor.shape)
        wide = dtype if dtype is not None and value.dtype is torch.bfloat16 else value.dtype
        made[tensor.name] = nn.Parameter(value.to(wide), requires_grad=False)
    for name, stored in [*((name, name) for name in made), *layout.aliases]:
        *path, last = name.split(".")
        at = root
        for step in path:
            if not hasattr(at, step):
                at.add_module(step, nn.Module())
            at = getattr(at, step)
        at.register_parameter(last, made[stored])
    return root


class TestModule(EngineContract):
    dtype: torch.dtype | None = None
    plain = False

    @pytest.fixture
    def engine(self, scene: EngineScene, monkeypatch: pytest.MonkeyPatch) -> Engine:
        if self.plain:
            monkeypatch.setattr("weightsync.engine.inplace.live.lanes_of", DeviceLanes)
        self.gate, self.breaks = Gate(), []
        put = plans.Scattered.put

        def breaking(entry: Any) -> int:
            if self.breaks:
                self.breaks[0] -= 1
                if self.breaks[0] < 0:
                    self.breaks.clear()
                    half = len(entry.places) // 2
                    put(entry._replace(places=entry.places[:half], new=entry.new[:half]))
                    raise Unavailable("a fault in the middle of a tensor")
            return put(entry)

        monkeypatch.setattr(plans.Scattered, "put", breaking)
        module = module_of(scene.layout, scene.weights[0], self.dtype)
        return TorchModuleEngine(module, self.gate, scene.ref(1), layout=scene.layout)

    def ask(self, engine: Any) -> int:
        with self.gate.request(), self.gate.step() as version:
            return version

    def break_write(self, engine: Any, number: int) -> None:
        self.breaks.append(number)


class TestPlainTorch(TestModule):
    plain = True


class TestWiderParameters(TestModule):
    dtype = torch.float32


@pytest.fixture
def scene(tmp_path) -> Any:
    scene = EngineScene(tmp_path / "image")
    yield scene
    scene.close()


def make(scene: EngineScene) -> tuple[nn.Module, Gate, TorchModuleEngine]:
    module, gate = module_of(scene.layout, scene.weights[0]), Gate()
    return module, gate, TorchModuleEngine(module, gate, scene.ref(1))


def test_without_a_layout_it_learns_it(scene: EngineScene) -> None:
    _, _, engine = make(scene)
    assert "lm_head.weight" in engine.sums()
    engine.stage(scene.change(1, 2)).apply(prove=True)
    assert engine.sums() == scene.sums(2)


def test_drift_is_found_when_staging_where_it_is_to_be_written(scene: EngineScene) -> None:
    module, _, engine = make(scene)
    change = scene.change(1, 2)
    one = next(one for one in change.tensors if one.positions is not None)
    name = scene.layout.tensors[one.tensor].name
    parameter = module.get_parameter(name)
    parameter.view(-1).view(torch.int16 if parameter.element_size() == 2 else torch.int32)[int(one.positions[0])] ^= 2
    with pytest.raises(Corrupt, match="not what they were"):
        engine.stage(change)
    engine.reload(scene.change(None, 2))
    assert engine.sums() == scene.sums(2)


def test_drift_elsewhere_is_found_by_the_proof(scene: EngineScene) -> None:
    module, _, engine = make(scene)
    change = scene.change(1, 2)
    lanes = set(range(module.model.embed_tokens.weight.numel())) - set(change.tensors[0].positions.tolist())
    module.model.embed_tokens.weight.view(-1).view(torch.int16)[min(lanes)] ^= 1
    assert scene.layout.tensors[change.tensors[0].tensor].name == "model.embed_tokens.weight"
    with pytest.raises(Corrupt, match="embed_tokens"):
        engine.stage(change).apply(prove=True)
    assert engine.version == scene.ref(1)


def test_a_pause_that_ends_too_early_goes_back(scene: EngineScene) -> None:
    _, gate, engine = make(scene)
    staged = engine.stage(scene.change(1, 2))
    with gate.step(), pytest.raises(Unavailable):
        staged.apply(limit_s=0.01)
    staged = engine.stage(scene.change(1, 2))
    with pytest.raises(Unavailable):
        staged.apply(limit_s=1e-9)
    assert engine.version == scene.ref(1)
    assert engine.sums() == scene.sums(1)
    with gate.step() as version:
        assert version == 1


def test_a_whole_version_that_fails_leaves_it_dirty(scene: EngineScene) -> None:
    _, gate, engine = make(scene)
    change = scene.change(None, 2)
    seen: list[int] = []

    def fail() -> None:
        seen.append(1)
        if len(seen) == 3:
            raise Unavailable("fault")

    staged = engine.stage(change)
    real = staged._plan.put
    staged._plan.put = lambda check: real(fail)
    with pytest.raises(Dirty):
        staged.apply()
    assert engine.version is None
    with pytest.raises(Unavailable, match="in doubt"), gate.step():
        pass
    with pytest.raises(Dirty):
        engine.admit()
    engine.reload(scene.change(None, 2))
    assert engine.sums() == scene.sums(2)
    with gate.step() as version:
        assert version == 2


def test_elements_that_share_memory_are_refused(scene: EngineScene) -> None:
    module = nn.Module()
    module.register_buffer("w", torch.zeros(1, 4).expand(3, 4))
    with pytest.raises(Invalid, match="'w'"):
        TorchModuleEngine(module, Gate())


def test_writing_and_reading_back_in_one_pass_or_two(scene: EngineScene) -> None:
    module, _, engine = make(scene)
    change = scene.change(1, 2)
    for together in (True, False):
        plan = engine.stage(change)._take()
        assert (plan.put() if together else plan.write()) == plan.read_back() == change.lanes
        assert engine.sums() == scene.sums(2)
        module.model.embed_tokens.weight.view(-1).view(torch.int16)[int(change.tensors[0].positions[0])] ^= 1
        with pytest.raises(Corrupt, match="embed_tokens"):
            plan.read_back()
        assert plan.undo() == change.lanes
        assert engine.sums() == scene.sums(1)


def test_tensors_that_overlap_are_refused(scene: EngineScene) -> None:
    flat, module = torch.zeros(20), nn.Module()
    module.register_buffer("a", flat[:12])
    module.register_buffer("b", flat[8:].view(3, 4).t())
    with pytest.raises(Invalid, match="'b' shares elements"):
        TorchModuleEngine(module, Gate())


def test_parameters_that_are_views_of_one_buffer(tmp_path) -> None:
    """As flattened by a trainer; one is transposed."""
    flat = torch.zeros(200, dtype=torch.bfloat16)
    module = nn.Module()
    module.register_buffer("a", flat[:60].view(10, 6))
    module.register_buffer("b", flat[60:180].view(12, 10).t())
    layout = make_layout([Tensor("a", KINDS["BF16"], (10, 6)), Tensor("b", KINDS["BF16"], (10, 12))], chunk_lanes=1024)
    scene = EngineScene(tmp_path / "views", layout=layout)
    engine = TorchModuleEngine(module, Gate())
    engine.reload(scene.change(None, 1))
    engine.stage(scene.change(1, 2)).apply(prove=True)
    assert engine.sums() == scene.sums(2)
    assert np.array_equal(module.b.contiguous().view(torch.int16).numpy().view(np.uint16).ravel(), scene.weights[1]["b"])
    assert not flat[180:].any()
    scene.close()


def test_steps_go_on_beside_swaps_and_never_see_a_mix(scene: EngineScene) -> None:
    module, gate, engine = make(scene)
    prints = {number: hash(scene.weights[number - 1]["model.embed_tokens.weight"].tobytes()) for number in range(1, 5)}
    stop, seen, wrong = threading.Event(), set(), []

    def serve() -> None:
        while not stop.is_set():
            with gate.request(), gate.step() as version:
                found = hash(module.model.embed_tokens.weight.detach().view(torch.int16).numpy().tobytes())
                if found != prints[version]:
                    wrong.append(version)
            seen.add(version)

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    base = 1
    for round_ in range(24):
        version = 1 + (base + round_ % 2) % 4
        if version != base:
            engine.stage(scene.change(base, version)).apply(list(Mode)[round_ % 2])
            base = version
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert seen <= {1, 2, 3, 4}
