"""An inference engine in this process: episodes ask, requests share a batch, weights change between its steps.

gate = Gate()
engine = TorchModuleEngine(decoder, gate)         # swaps weights; the gate keeps them still during a step
with LocalPolicy(decoder, gate) as policy:
    completion = await policy.complete(tokens, max_tokens=8)
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from weightsync.clock import SYSTEM, Clock
from weightsync.engine.gate import Gate, Request
from weightsync.errors import Invalid, Unavailable
from weightsync.rl.aligned import Reader
from weightsync.rl.api import Completion
from weightsync.rl.decoder import Decoder
from weightsync.rl.sampler import Draw, Sampler

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Pending:
    draw: Draw
    request: Request
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[Completion]"

    def settle(self, error: BaseException | None = None) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(self.draw.completion())
        else:
            self.done.set_exception(error)


class LocalPolicy:
    """A `Policy` over a decoder that lives here; `slots` requests share a batch. A thread of its own makes the steps.

    `aligned`: draws with the numerics of a learner that has the same `Reader`, at its price. `busy_s` and `tokens` count the time spent
    in steps and the tokens drawn.
    """

    def __init__(
        self, decoder: Decoder, gate: Gate, *, slots: int = 64, seed: int = 0, aligned: Reader | None = None, clock: Clock = SYSTEM
    ) -> None:
        self._gate, self._clock, self._context = gate, clock, decoder.shape.context
        self._sampler = Sampler(decoder, slots, reader=aligned)
        self._random = np.random.default_rng(seed)
        self._pending: dict[Draw, _Pending] = {}
        self._new: list[_Pending] = []
        self._left: list[Draw] = []
        self._changed = threading.Condition()
        self._closed = False
        self.busy_s, self.tokens = 0.0, 0
        self._thread = threading.Thread(target=self._work, name="weightsync-policy", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int | None:
        """What it draws with; None: nothing."""
        return self._gate.version

    async def complete(
        self, tokens: Sequence[int], *, max_tokens: int, temperature: float = 1.0, seed: int | None = None, min_version: int = 0
    ) -> Completion:
        """As `Policy` has it. A seed decides the draws; whether equal seeds draw equal tokens hangs, off aligned mode, on rounding too."""
        if not 0 < len(tokens) < self._context or max_tokens < 1:
            raise Invalid(f"{len(tokens)} tokens and {max_tokens} more do not fit: the model reads at most {self._context}")
        random = self._random if seed is None else np.random.default_rng(seed)
        draw = Draw(list(tokens), random.random(max_tokens), temperature)
        async with self._gate.request(minimum=min_version) as request:
            loop = asyncio.get_running_loop()
            pending = _Pending(draw, request, loop, loop.create_future())
            self._submit(pending)
            try:
                return await pending.done
            finally:
                if pending.done.cancelled():
                    self._abandon(draw)

    def close(self) -> None:
        """Ends the thread; requests in flight fail as `Unavailable`."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _submit(self, pending: _Pending) -> None:
        with self._changed:
            if self._closed:
                raise Unavailable("the policy is closed", remedy="ask another replica")
            self._new.append(pending)
            self._changed.notify()

    def _abandon(self, draw: Draw) -> None:
        with self._changed:
            self._left.append(draw)
            self._changed.notify()

    def _work(self) -> None:
        while self._take():
            try:
                self._step()
            except Unavailable:  # withdrawn, or a pause beyond its limit: what was drawn so far goes back, to be continued elsewhere
                self._end(list(self._pending))
            except Exception as error:  # noqa: BLE001  one failed step ends the requests in it, and not the engine
                _log.exception("a step of generation failed")
                for pending in self._pending.values():
                    pending.settle(Unavailable(f"a step of generation failed: {error!r}", remedy="ask again"))
                self._forget(list(self._pending))
        for pending in (*self._pending.values(), *self._new):
            pending.settle(Unavailable("the policy is closed", remedy="ask another replica"))

    def _take(self) -> bool:
        """Waits for something to do; false once it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._new or self._left or self._pending)
            new, left = self._new, self._left
            if self._closed:
                return False
            self._new, self._left = [], []
        for pending in new:
            self._pending[pending.draw] = pending
            self._sampler.add(pending.draw)
        self._forget(left)
        return True

    def _step(self) -> None:
        self._end([draw for draw, pending in self._pending.items() if pending.request.ended])
        if not self._pending:
            return
        with self._gate.step() as version:
            start_s = self._clock.monotonic_s()
            ended = self._sampler.step(version)
            self.busy_s += self._clock.monotonic_s() - start_s
        self.tokens += len(self._sampler.running) + len(ended)
        self._end(ended)

    def _end(self, draws: Sequence[Draw]) -> None:
        for draw in draws:
            self._pending[draw].settle()
        self._forget(draws)

    def _forget(self, draws: Sequence[Draw]) -> None:
        self._sampler.drop(draws)
        for draw in draws:
            self._pending.pop(draw, None)
