"""A rollout worker: weights come from the store, tasks from the hub; groups go back.

    subscriber thread   store -> image -> policy, swapped in place between two steps of generation
    event loop          lease -> episodes at once, in one batch -> group -> submit; heartbeats beside

It may be killed at any moment: its tasks go out again when their leases run out.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weightsync.clock import SYSTEM, Clock, jitter
from weightsync.engine.gate import Gate
from weightsync.engine.torch_module import TorchModuleEngine
from weightsync.errors import Unavailable, WeightsyncError
from weightsync.rl.api import Environment
from weightsync.rl.decoder import Decoder, Shape
from weightsync.rl.episode import Rules, play_group
from weightsync.rl.learner import TINY
from weightsync.rl.policy import LocalPolicy
from weightsync.rl.records import Episode, Group, Outcome, Task
from weightsync.rl.service import LoopClient
from weightsync.rl.threads import use_one_thread

logger = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
IDLE_S = 0.05


@dataclass(frozen=True)
class Who:
    """`name` is the worker's own: another process under it takes its place. `groups`: how many it plays at once."""

    name: str
    region: str
    groups: int = 4


class Local(NamedTuple):
    """An engine of this process: what generates with `decoder` does so in steps of `gate`, and `engine` changes its weights."""

    decoder: Decoder
    gate: Gate
    engine: TorchModuleEngine


def empty_engine(shape: Shape = TINY) -> Local:
    """It serves nothing until weights are delivered."""
    use_one_thread()
    gate, decoder = Gate(), Decoder(shape, torch.Generator()).bfloat16()
    return Local(decoder, gate, TorchModuleEngine(decoder, gate))


class Worker:
    """Plays until `stop` says so. Runs in an event loop; the policy has a thread of its own."""

    def __init__(
        self,
        who: Who,
        client: LoopClient,
        policy: LocalPolicy,
        open_environment: Callable[[str], Environment],
        *,
        rules: Rules | None = None,
        environment_s: float = 0.0,
        clock: Clock = SYSTEM,
    ) -> None:
        self._who, self._client, self._policy, self._open = who, client, policy, open_environment
        self._rules, self._environment_s, self._clock = rules or Rules(), environment_s, clock
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._environments: dict[str, Environment] = {}
        self.refused: Counter[str] = Counter()
        self.submitted = self.rejected = self.given_up = 0
        self.busy_s = 0.0  # of the last heartbeat's time, for the idle share
        self._began_s = clock.monotonic_s()

    async def run(self, stop: Callable[[], bool]) -> None:
        """Until `stop`; then what is played is given up."""
        wait_s = IDLE_S
        heard_s = -HEARTBEAT_S
        try:
            while not stop():
                wants = len(self._playing) < self._who.groups and self._policy.version is not None
                if not wants and self._clock.monotonic_s() - heard_s < HEARTBEAT_S:
                    await asyncio.sleep(IDLE_S)
                    continue
                task = await self._lease(wants=wants)
                heard_s = self._clock.monotonic_s()
                if task is not None:
                    self._playing[task.number] = asyncio.create_task(self._play(task))
                    wait_s = IDLE_S
                elif wants:
                    await asyncio.sleep(jitter(wait_s) + IDLE_S / 2)
                    wait_s = min(2 * wait_s, 0.5)
        finally:
            for playing in self._playing.values():
                playing.cancel()
            await asyncio.gather(*self._playing.values(), return_exceptions=True)

    def metrics(self) -> dict[str, float]:
        """For the hub."""
        lived_s = max(1e-9, self._clock.monotonic_s() - self._began_s)
        return {
            "idle": max(0.0, 1 - self._policy.busy_s / lived_s),
            "tokens": float(self._policy.tokens),
            "submitted": float(self.submitted),
            "rejected": float(self.rejected),
            "given_up": float(self.given_up),
            "refused": float(self.refused.total()),
        }

    async def _lease(self, *, wants: bool) -> Task | None:
        def ask() -> tuple[Task | None, list[int], str]:
            playing = tuple(self._playing)
            version = self._policy.version or 0
            return self._client.lease(self._who.name, self._who.region, version, working_on=playing, metrics=self.metrics(), wants=wants)

        try:
            task, give_up, _ = await asyncio.to_thread(ask)
        except WeightsyncError as error:  # the region is cut off, or the hub is away: what is played is played on
            logger.warning("no task: %s", error)
            await asyncio.sleep(HEARTBEAT_S)
            return None
        for number in give_up:
            if number in self._playing:
                self.given_up += 1
                self._playing.pop(number).cancel()
        return task

    async def _play(self, task: Task) -> None:
        try:
            await self._play_and_submit(task)
        except Exception as error:  # noqa: BLE001  environments are others' programs; what they raise ends this task here, and nothing else
            logger.warning("task %d is given back: %s", task.number, error)
            self.refused[error.kind if isinstance(error, WeightsyncError) else type(error).__name__] += 1
            await asyncio.sleep(HEARTBEAT_S)  # it may well fail again
        finally:
            if self._playing.get(task.number) is asyncio.current_task():  # else it was given up, and has gone out again
                del self._playing[task.number]

    async def _play_and_submit(self, task: Task) -> None:
        if task.environment not in self._environments:
            self._environments[task.environment] = self._open(task.environment)
        environment = self._environments[task.environment]
        if self._environment_s:
            await asyncio.sleep(self._environment_s)
        episodes = await play_group(environment, task, self._policy, clock=self._clock, rules=self._rules, refused=self.refused)
        if not self._usable(episodes):
            raise Unavailable(f"nothing of it could be graded: {episodes[0].grade.why}", remedy="it goes out again")
        await self._submit(Group(task, episodes, self._who.name, self._who.region, self._clock.now_s()))

    def _usable(self, episodes: tuple[Episode, ...]) -> bool:
        """A group of which nothing could be graded teaches nothing, and would count for nothing."""
        return any(one.grade.outcome is not Outcome.INFRA_ERROR for one in episodes)

    async def _submit(self, group: Group) -> None:
        """Until the hub has it, or has refused it. It counts once, however often it is sent. Raises what the hub refuses it with."""
        while True:
            try:
                accepted = await asyncio.to_thread(self._client.submit, group)
            except Unavailable as error:
                logger.warning("group %d waits: %s", group.task.number, error)
                await asyncio.sleep(HEARTBEAT_S / 2 + jitter(HEARTBEAT_S))
                continue
            self.submitted += accepted
            self.rejected += not accepted
            return
