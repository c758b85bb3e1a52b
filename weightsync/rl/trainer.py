"""The trainer's side of the loop: take groups, learn, make it durable, publish; begin again from there after whatever happened.

    take  ->  consume  ->  save (durable: the groups count)  ->  publish  ->  confirm  ->  take ...

A crash before `save` forgets the step, and its groups wait at the hub or are made again. A crash after it publishes the saved weights
when the trainer comes back. So each group counts exactly once, and no version has weights that are not durable. The record of a step is
written before `save`: every step that counts has one, and a step that is done again writes its record again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from weightsync.clock import SYSTEM, Clock
from weightsync.errors import Unavailable
from weightsync.failpoints import failpoint
from weightsync.publisher.live import LivePublisher
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.result import Published
from weightsync.rl import checkpoint as checkpoints
from weightsync.rl.environments import open_environment
from weightsync.rl.imitation import Questions, examples
from weightsync.rl.learner import Learner, LearnerSettings
from weightsync.rl.metrics import Step
from weightsync.rl.records import Group
from weightsync.rl.replay import keep, load, place_of
from weightsync.rl.service import LoopClient
from weightsync.rl.settings import LoopSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_S = 1.0


@dataclass(frozen=True)
class Done:
    """One step. `version`: what its weights were published as; `waited_s`, `learned_s`, `published_s`: where its time went.

    `again`: the trainer went on from this step, which may have been told before it ended; the seconds are unknown then.
    """

    step: Step
    version: int
    published: Published
    waited_s: float
    learned_s: float
    published_s: float
    again: bool = False


class Trainer:
    """For one thread. `home` is the trainer's own directory."""

    def __init__(
        self,
        settings: LoopSettings,
        client: LoopClient,
        publisher: Publisher,
        home: Path,
        *,
        clock: Clock = SYSTEM,
    ) -> None:
        self._settings, self._client, self._publisher, self._home = settings, client, publisher, home
        self._clock = clock
        self._learner = Learner(LearnerSettings(loss=settings.loss, learning_rate=settings.learning_rate, seed=settings.seed))
        self._version = 0

    @property
    def _checkpoints(self) -> Path:
        return self._home / "checkpoints"

    @property
    def _records(self) -> Path:
        return self._home / "records"

    def run(self, on_step: Callable[[Done], None]) -> int:
        """Until all steps are done; the last version. Raises what publishing raises, such as `Fenced`.

        `on_step` hears of every step; of the one that it goes on from as well, where that has a record.
        """
        self._publisher.start()
        with LivePublisher(self._publisher) as live:
            self._begin()
            published = self._publish(live)
            self._version = published.version
            self._told(lambda: self._client.begin(self._learner.consumed, self._learner.step, self._version))
            if self._settings.records and place_of(self._records, self._learner.step).exists():
                on_step(Done(load(place_of(self._records, self._learner.step))[0], self._version, published, 0.0, 0.0, 0.0, again=True))
            while self._learner.step < self._settings.steps:
                on_step(self._step(live))
        return self._version

    def _begin(self) -> None:
        found = checkpoints.newest(self._checkpoints)
        if found is not None:
            self._learner.restore(found)
            logger.info("going on after step %d", self._learner.step)
            return
        if self._settings.imitate:
            environment = open_environment(self._settings.environment)
            if isinstance(environment, Questions):
                self._learner.imitate(examples(environment, self._settings.imitate, seed=self._settings.seed))
        self._learner.save(self._checkpoints)

    def _step(self, live: LivePublisher) -> Done:
        began_s = self._clock.monotonic_s()
        groups = self._take()
        taken_s = self._clock.monotonic_s()
        step = self._learner.consume(groups, version=self._version)
        failpoint("trainer.consumed")
        if self._settings.records:
            keep(self._records, step, self._learner.settings)
        self._learner.save(self._checkpoints)
        failpoint("trainer.saved")
        checkpoints.prune(self._checkpoints, self._settings.keep_checkpoints)
        learned_s = self._clock.monotonic_s()
        published = self._publish(live)
        self._version = published.version
        over_s = self._clock.monotonic_s()
        done = Done(step, self._version, published, taken_s - began_s, learned_s - taken_s, over_s - learned_s)
        metrics = {**step.metrics, "waited_s": done.waited_s, "learned_s": done.learned_s, "published_s": done.published_s}
        self._told(lambda: self._client.confirm(self._learner.consumed, self._learner.step, self._version, metrics))
        return done

    def _publish(self, live: LivePublisher) -> Published:
        return live.publish(self._learner.step, self._learner.weights(), files=self._learner.files()).result()

    def _take(self) -> list[Group]:
        """Waits for as long as it takes. A hub that was started anew is told what counts first."""
        while True:
            groups = self._told(lambda: self._client.take(self._version))
            if groups:
                return groups

    def _told(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except Unavailable as error:
                logger.warning("the hub: %s", error)
                self._clock.sleep_s(RETRY_S)
                try:
                    self._client.begin(self._learner.consumed, self._learner.step, self._version)
                except Unavailable:
                    continue
