"""The policy: many requests in one batch, each token under the version it says, whatever the weights do meanwhile."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.rl.made import MIXTURE, SHAPE, one_thread, sharpened  # noqa: E402
from weightsync.engine.api import Mode  # noqa: E402
from weightsync.engine.gate import Gate  # noqa: E402
from weightsync.errors import Invalid, Unavailable  # noqa: E402
from weightsync.rl.aligned import Reader  # noqa: E402
from weightsync.rl.api import Completion, Finish  # noqa: E402
from weightsync.rl.decoder import Decoder, Shape  # noqa: E402
from weightsync.rl.mlp import FREE, Routing  # noqa: E402
from weightsync.rl.policy import LocalPolicy  # noqa: E402
from weightsync.rl.text import END  # noqa: E402

_one_thread = pytest.fixture(autouse=True)(one_thread)


class World:
    """Version n of the weights is version 1 of seed n."""

    def __init__(self, shape: Shape = SHAPE, slots: int = 8, **settings: Any) -> None:
        self.shape, self.gate = shape, Gate(1)
        self.decoder = self.fresh(1)
        self.policy = LocalPolicy(self.decoder, self.gate, slots=slots, **settings)

    def fresh(self, version: int) -> Decoder:
        decoder = Decoder(self.shape, torch.Generator().manual_seed(version))
        sharpened(decoder, 8)
        decoder.lm_head.weight.data[END] -= 1.0  # few early ends
        return decoder

    def swap(self, version: int, mode: Mode = Mode.KEEP) -> None:
        with self.gate.pause(mode, limit_s=20):
            self.decoder.load_state_dict(self.fresh(version).state_dict())
            self.gate.serve(version)


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*arguments: Any, **settings: Any) -> World:
        made.append(World(*arguments, **settings))
        return made[-1]

    yield make
    for one in made:
        one.policy.close()


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def _prompts(count: int) -> list[list[int]]:
    random = np.random.default_rng(1)
    return [random.integers(1, 127, length).tolist() for length in random.integers(1, 9, count)]


def _check(world: World, prompt: list[int], found: Completion) -> None:
    """Every log-probability is what a fresh model of that token's version says, given all before it."""
    tokens = torch.tensor([[*prompt, *found.tokens.tolist()]])
    for version in np.unique(found.versions).tolist():
        with torch.no_grad():
            logprobs = world.fresh(version)(tokens[:, :-1])[0].log_softmax(-1)
        at = np.flatnonzero(found.versions == version)
        said = logprobs[len(prompt) - 1 + torch.from_numpy(at), torch.from_numpy(found.tokens[at]).long()]
        assert torch.allclose(said, torch.from_numpy(found.logprobs[at]), atol=2e-3)


def test_more_requests_than_slots_all_get_their_own_answer(world) -> None:
    one = world()
    prompts = _prompts(40)

    async def ask() -> list[Completion]:
        return await asyncio.gather(*(one.policy.complete(prompt, max_tokens=2 + at % 9) for at, prompt in enumerate(prompts)))

    for at, (prompt, found) in enumerate(zip(prompts, _run(ask()), strict=True)):
        _check(one, prompt, found)
        assert found.finish in (Finish.STOP, Finish.LENGTH)
        assert (found.tokens[-1] == END) == (found.finish is Finish.STOP)
        assert END not in found.tokens[:-1]
        assert found.finish is Finish.STOP or len(found.tokens) == min(2 + at % 9, SHAPE.context - len(prompt))


def test_weights_change_under_requests_that_go_on(world) -> None:
    one = world()
    prompts = _prompts(24)

    async def ask() -> list[Completion]:
        asked = asyncio.gather(*(one.policy.complete(prompt, max_tokens=14, seed=at) for at, prompt in enumerate(prompts)))
        for version in range(2, 8):
            await asyncio.sleep(0.004)
            await asyncio.to_thread(one.swap, version)
        return await asked

    found = _run(ask())
    for prompt, completion in zip(prompts, found, strict=True):
        _check(one, prompt, completion)
        assert (np.diff(completion.versions) >= 0).all()
    assert any(len(np.unique(completion.versions)) > 1 for completion in found)


def test_a_swap_that_waits_finds_nothing_in_flight_and_one_that_aborts_gives_back_what_was_drawn(world) -> None:
    one = world(slots=64)
    prompts = [prompt[:4] for prompt in _prompts(48)]

    async def ask(mode: Mode) -> list[Completion]:
        before = one.gate.version
        asked = asyncio.gather(*(one.policy.complete(prompt, max_tokens=18) for prompt in prompts))
        while not one.policy.tokens:
            await asyncio.sleep(0)
        await asyncio.to_thread(one.swap, before + 1, mode)
        return await asked

    for completion in _run(ask(Mode.WAIT)):
        assert len(np.unique(completion.versions)) == 1
    one.policy.tokens = 0
    ended = _run(ask(Mode.ABORT))
    assert any(completion.finish is Finish.ABORTED for completion in ended)
    for prompt, completion in zip(prompts, ended, strict=True):
        _check(one, prompt, completion)


def test_a_seed_draws_the_same_again_and_zero_temperature_the_likeliest(world) -> None:
    one = world()
    prompt = _prompts(1)[0]

    async def ask() -> list[Completion]:
        return [
            await one.policy.complete(prompt, max_tokens=10, seed=seed, temperature=heat) for seed, heat in ((4, 1), (4, 1), (5, 1), (6, 0))
        ]

    first, again, other, greedy = _run(ask())
    assert first.tokens.tolist() == again.tokens.tolist() != other.tokens.tolist()
    with torch.no_grad():
        likeliest = one.decoder(torch.tensor([[*prompt, *greedy.tokens.tolist()]]))[0, len(prompt) - 1 : -1].argmax(-1)
    assert greedy.tokens.tolist() == likeliest.tolist()


def test_draws_follow_the_distribution(world) -> None:
    one = world(slots=64)

    async def ask() -> list[Completion]:
        return await asyncio.gather(*(one.policy.complete([65, 66], max_tokens=1, temperature=1.5) for _ in range(4000)))

    counts = np.bincount([int(found.tokens[0]) for found in _run(ask())], minlength=128) / 4000
    with torch.no_grad():
        expected = (one.decoder(torch.tensor([[65, 66]]))[0, -1] / 1.5).softmax(-1).numpy()
    assert np.abs(counts - expected).max() < 5 * np.sqrt(0.25 / 4000)
    assert np.abs(counts - expected).sum() < 0.35


def test_what_is_not_served_is_told_to_ask_again(world) -> None:
    one = world()
    with pytest.raises(Unavailable, match="version 5 or later"):
        _run(one.policy.complete([65], max_tokens=2, min_version=5))
    one.gate.withdraw("proof failed")
    with pytest.raises(Unavailable, match="proof failed"):
        _run(one.policy.complete([65], max_tokens=2))
    one.gate.admit()
    assert len(_run(one.policy.complete([65], max_tokens=2)).tokens) > 0
    for tokens in ([], [65] * SHAPE.context):
        with pytest.raises(Invalid, match="do not fit"):
            _run(one.policy.complete(tokens, max_tokens=2))
    one.policy.close()
    with pytest.raises(Unavailable, match="closed"):
        _run(one.policy.complete([65], max_tokens=2))


def test_one_failed_step_ends_its_requests_and_not_the_engine(world) -> None:
    one = world()
    with pytest.raises(Unavailable, match="step of generation failed"):
        _run(one.policy.complete([9999], max_tokens=2))  # beyond the vocabulary
    assert len(_run(one.policy.complete([65], max_tokens=2)).tokens) > 0


def test_who_goes_away_takes_its_row_with_it(world) -> None:
    one = world(slots=1)

    async def ask() -> Completion:
        first = asyncio.ensure_future(one.policy.complete([65], max_tokens=22))
        await asyncio.sleep(0.01)
        first.cancel()
        return await one.policy.complete([66], max_tokens=3)

    _check(one, [66], _run(ask()))
    assert one.gate.in_flight == 0


def test_experts_are_those_that_read_each_token(world) -> None:
    one = world(MIXTURE)
    prompts = _prompts(12)

    async def ask() -> list[Completion]:
        return await asyncio.gather(*(one.policy.complete(prompt, max_tokens=8) for prompt in prompts))

    for prompt, found in zip(prompts, _run(ask()), strict=True):
        assert found.experts is not None
        assert found.context_experts is not None
        rows = np.concatenate([found.context_experts, found.experts])
        assert (rows[-1] == FREE).all()
        routing = Routing()
        with torch.no_grad():
            one.decoder(torch.tensor([[*prompt, *found.tokens.tolist()]]), routing=routing)
        same = np.sort(routing.chosen[0, :-1].numpy(), -1) == np.sort(rows[:-1], -1)
        assert same.mean() > 0.98  # a tie may fall otherwise in another batch


def test_an_aligned_policy_draws_as_well(world) -> None:
    one = world(aligned=Reader(4))
    prompt = _prompts(1)[0]
    _check(one, prompt, _run(one.policy.complete(prompt, max_tokens=9)))
