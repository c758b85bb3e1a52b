"""What is learned from loaders, and that it is true."""

import numpy as np
import pytest
import torch

from tests.engine.inplace.loaders import MODELS, Model, experts, fused, parameter, tensor_parallel, tied, values
from weightsync.engine.inplace import LiveWeights, Recorder, add_up, check, record
from weightsync.engine.inplace.check import _bits
from weightsync.engine.inplace.lanes import DeviceLanes
from weightsync.errors import Corrupt, Invalid
from weightsync.format.sums import tensor_sum


def snapshot(model: Model) -> dict[str, np.ndarray]:
    return {name: _bits(tensor) for name, tensor in model.parameters.items()}


def sums_of(model: Model) -> dict[str, int]:
    return {name: tensor_sum(_bits(tensor).view()) for name, tensor in model.checkpoint.items()}


@pytest.fixture(params=sorted(MODELS))
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]()


def test_every_parameter_is_covered_or_named(model: Model) -> None:
    found = record(model.parameters, model.load, model.tensors)
    assert set(found.opaque) == model.opaque
    assert found.outside == model.outside
    assert set(found.unused) - {"empty"} == model.unused
    reached = {part.tensor for part in found.parts} | set(found.opaque_tensors)
    assert reached == set(model.checkpoint) - model.unused - {"empty"}
    assert all(why for why in found.opaque.values())


@pytest.mark.parametrize("device", ["host", "any"])
def test_what_is_live_is_read_through_it(model: Model, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "any":
        monkeypatch.setattr("weightsync.engine.inplace.live.lanes_of", DeviceLanes)
    live = LiveWeights(model.parameters, record(model.parameters, model.load, model.tensors))
    found, expected = live.sums(), sums_of(model)
    assert found == {name: expected[name] for name in found}
    assert set(found) == set(model.checkpoint) - model.unused - model.partial - set(live.opaque)


@pytest.mark.parametrize("device", ["host", "any"])
def test_a_write_lands_where_the_loader_puts_it(model: Model, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if device == "any":
        monkeypatch.setattr("weightsync.engine.inplace.live.lanes_of", DeviceLanes)
    live = LiveWeights(model.parameters, record(model.parameters, model.load, model.tensors))
    rng = np.random.default_rng(1)
    for name, tensor in model.checkpoint.items():
        bits = _bits(tensor)
        if not len(bits) or name in model.unused:
            continue
        positions = np.flatnonzero(rng.random(len(bits)) < 0.3).astype(np.uint32)
        bits[positions] ^= bits.dtype.type(1)
        live.poke(name, positions, bits[positions])
        model.checkpoint[name] = torch.from_numpy(bits).view(tensor.dtype).reshape(tensor.shape)
    written = snapshot(model)
    model.load(model.tensors())
    for name, loaded in snapshot(model).items():
        if name not in model.opaque:
            assert np.array_equal(written[name], loaded), name


def test_the_check_agrees_and_leaves_what_was_loaded(model: Model) -> None:
    found = record(model.parameters, model.load, model.tensors)
    before = snapshot(model)
    assert dict(check(found, model.parameters, model.load, model.tensors).opaque) == dict(found.opaque)
    assert all(np.array_equal(before[name], after) for name, after in snapshot(model).items())


def test_the_check_finds_a_map_that_lies() -> None:
    model = fused()
    found = record(model.parameters, model.load, model.tensors)
    part = found.parts[1]
    moved = part._replace(where=part.where._replace(target=part.where.target + 16))
    lying = type(found)(found.tensors, found.homes, (found.parts[0], moved, *found.parts[2:]))
    assert set(check(lying, model.parameters, model.load, model.tensors).opaque) == {part.parameter}


def test_what_goes_round_torch_is_found_by_the_check() -> None:
    target = parameter(8, 4)

    def load(stream) -> None:
        for _, tensor in stream:
            target.data.view(torch.int16).numpy()[:] = tensor.view(torch.int16).numpy()

    tensors = lambda: [("w", values(8, 4))]  # noqa: E731
    found = record({"w": target}, load, tensors)
    assert found.outside == {"w": 32}
    assert set(check(found, {"w": target}, load, tensors).opaque) == {"w"}


def test_it_is_compact() -> None:
    model = experts()
    found = record(model.parameters, model.load, model.tensors)
    assert len(found.parts) == 4 * 3
    assert max(len(part.where.axes) for part in found.parts) == 2
    assert [len(part.where.axes) for part in record(*_of(fused())).parts] == [1] * 5


def test_ranks_add_up() -> None:
    models = [tensor_parallel(rank) for rank in range(2)]
    lives = [LiveWeights(one.parameters, record(one.parameters, one.load, one.tensors)) for one in models]
    found = add_up([region for live in lives for region in live.regions()], lives[0].map.tensors)
    assert found == sums_of(models[0])
    models[1].parameters["norm"].data[3] += 1
    with pytest.raises(Corrupt, match="norm"):
        add_up([region for live in lives for region in live.regions()], lives[0].map.tensors)


def test_experts_of_ranks_add_up() -> None:
    models = [experts(first, 4) for first in (0, 4)]
    lives = [LiveWeights(one.parameters, record(one.parameters, one.load, one.tensors)) for one in models]
    assert add_up([region for live in lives for region in live.regions()], lives[0].map.tensors) == sums_of(models[0])


def test_a_lane_that_drifted_shows(model: Model) -> None:
    live = LiveWeights(model.parameters, record(model.parameters, model.load, model.tensors))
    expected = sums_of(model)
    for name in live.sums():
        if model.checkpoint[name].numel():
            bits = _bits(model.checkpoint[name])
            live.poke(name, np.array([1 % len(bits)]), bits[[1 % len(bits)]] ^ bits.dtype.type(1))
            assert live.wrong(expected) == [name]
            live.poke(name, np.array([1 % len(bits)]), bits[[1 % len(bits)]])
    assert live.wrong(expected) == []


def test_a_wide_lane_that_is_no_narrow_value_shows() -> None:
    target = parameter(4, 4, dtype=torch.float32)
    checkpoint = {"w": values(4, 4)}
    live = LiveWeights(
        {"w": target}, record({"w": target}, lambda stream: [target.data.copy_(tensor) for _, tensor in stream], checkpoint.items())
    )
    expected = live.sums()
    target.data.view(torch.int32)[2, 2] ^= 1
    assert live.wrong(expected) == ["w"]


def test_a_storage_that_was_replaced_after_loading_is_opaque() -> None:
    model = tied()
    found = record(model.parameters, model.load, model.tensors)
    later = {**model.parameters, "copy": torch.zeros(3)}
    live = LiveWeights(later, found)
    assert set(live.opaque) == {"embed"}
    assert "another form" in live.opaque["embed"]


def test_a_recorder_for_loaders_that_fetch_the_tensors_themselves() -> None:
    model = fused()
    recorder = Recorder(model.parameters)
    with recorder:
        model.load(recorder.stream(model.tensors()))
    assert recorder.layout_map() == record(model.parameters, model.load, model.tensors)


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(Invalid, match="'w'"):
        record({}, list, [("w", torch.zeros(3, device="meta"))])


def _of(model: Model):
    return model.parameters, model.load, model.tensors
