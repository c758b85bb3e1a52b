"""Tasks of reasoning-gym by name, as `gym:basic_arithmetic`: its own questions, scored by its own checks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from weightsync.errors import Invalid, Unsupported
from weightsync.rl.records import Grade, Outcome
from weightsync.rl.text import printable

if TYPE_CHECKING:
    from weightsync.rl.api import Dialogue, Environment


class Entry(NamedTuple):
    """A question of a data set, and what scores answers to it."""

    prompt: str
    dataset: Any
    entry: Mapping[str, Any]

    @property
    def answer(self) -> str:
        """A right answer, as far as the vocabulary can say it; empty where the data set has none."""
        return printable(str(self.entry["answer"] or "").replace("\0", "?"))


@dataclass(frozen=True)
class Gym:
    """One of reasoning-gym's tasks; `room` is how many tokens an answer may have. The reward is its score, from 0 to 1."""

    task: str
    room: int = 64

    @property
    def name(self) -> str:
        """`gym:` and the task."""
        return f"gym:{self.task}"

    def problem(self, seed: int) -> Entry:
        """The only entry of the data set of that seed. Raises `Invalid` for tasks that there are not."""
        try:
            import reasoning_gym  # noqa: PLC0415  an extra
        except ImportError as error:
            raise Unsupported("reasoning-gym is not installed", remedy="pip install 'weightsync[rl]'") from error
        try:
            dataset = reasoning_gym.create_dataset(self.task, size=1, seed=seed)
        except ValueError as error:
            raise Invalid(f"no task {self.task!r} in reasoning-gym: {error}") from error
        entry = dataset[0]
        return Entry(printable(entry["question"].replace("\0", "?")) + "\n", dataset, entry)

    async def play(self, problem: Entry, dialogue: "Dialogue") -> str:
        """One turn."""
        return await dialogue.ask(problem.prompt, max_tokens=self.room)

    async def grade(self, problem: Entry, result: str) -> Grade:
        """As the data set scores it."""
        score = float(problem.dataset.score_answer(result.strip(), problem.entry))
        return Grade(Outcome.GRADED, score, {"score": score})


if TYPE_CHECKING:
    _conforms: type[Environment] = Gym
