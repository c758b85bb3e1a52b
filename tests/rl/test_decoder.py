"""Rows at their own places over shared caches, and a mixture of experts that transformers would load."""

import pytest

torch = pytest.importorskip("torch")

from weightsync.rl.decoder import Decoder, Shape  # noqa: E402
from weightsync.rl.mlp import FREE, Routing  # noqa: E402

DENSE = Shape(width=32, layers=2, heads=2, kv_heads=1, head_width=16, mlp_width=48, context=24)
MIXTURE = Shape(width=32, layers=2, heads=2, kv_heads=1, head_width=16, mlp_width=16, context=24, experts=4, chosen_experts=2)


def _decoder(shape: Shape) -> Decoder:
    decoder = Decoder(shape, torch.Generator().manual_seed(3))
    for parameter in decoder.parameters():
        parameter.data.mul_(6)
    return decoder


@pytest.mark.parametrize("shape", [DENSE, MIXTURE])
@torch.no_grad()
def test_rows_at_their_own_places_give_what_each_gives_alone(shape: Shape) -> None:
    decoder, generator = _decoder(shape), torch.Generator().manual_seed(5)
    rows = [torch.randint(0, 32, (length,), generator=generator) for length in (3, 9, 6)]
    caches = decoder.caches(4, shape.context)
    for index, row in enumerate(rows):
        own = [type(cache)(cache.keys[index : index + 1], cache.values[index : index + 1]) for cache in caches]
        decoder(row[None, :-1], own)
    last = torch.stack([row[-1] for row in rows])[:, None]
    together = decoder(last, caches, torch.tensor([len(row) - 1 for row in rows]))[:, 0]
    alone = torch.stack([decoder(row[None])[0, -1] for row in rows])
    assert torch.allclose(together, alone, atol=1e-4)


@torch.no_grad()
def test_routes_are_kept_and_replayed() -> None:
    decoder, tokens = _decoder(MIXTURE), torch.arange(12).view(2, 6)
    first = Routing()
    free = decoder(tokens, routing=first)
    assert first.chosen.shape == (2, 6, 2, 2)
    again = Routing(first.chosen)
    assert torch.equal(decoder(tokens, routing=again), free)
    other = (first.chosen + 1) % 4
    forced = Routing(other)
    assert not torch.allclose(decoder(tokens, routing=forced), free)
    assert torch.equal(forced.chosen, other)
    unknown = torch.full_like(other, FREE)
    assert torch.equal(decoder(tokens, routing=Routing(unknown)), free)


def test_gradients_reach_the_router_through_replayed_routes() -> None:
    decoder, tokens = _decoder(MIXTURE), torch.arange(6)[None]
    routing = Routing()
    decoder(tokens, routing=routing)
    decoder(tokens, routing=Routing(routing.chosen)).sum().backward()
    assert all(float(layer.mlp.gate.weight.grad.abs().sum()) > 0 for layer in decoder.model.layers)


def test_a_mixture_has_the_names_of_qwen3_moe() -> None:
    names = set(_decoder(MIXTURE).state_dict())
    assert {"model.layers.1.mlp.gate.weight", "model.layers.0.mlp.experts.3.down_proj.weight"} <= names
    assert MIXTURE.config()["model_type"] == "qwen3_moe"
    assert "num_experts" not in DENSE.config()
