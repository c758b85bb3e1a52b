"""A question with one right answer, as short tasks have it; also what imitation learns from: `prompt`, then `answer`, then the end."""

from typing import NamedTuple

from weightsync.rl.api import Dialogue
from weightsync.rl.records import Grade, Outcome


class Question(NamedTuple):
    """Both are ASCII; `room` is how many tokens the policy may take, by default those of the answer and of the end."""

    prompt: str
    answer: str
    room: int = 0


async def ask_once(question: Question, dialogue: Dialogue) -> str:
    """The agent that asks and takes what it hears."""
    return await dialogue.ask(question.prompt, max_tokens=question.room or len(question.answer) + 1)


def exact(question: Question, said: str, **scores: float) -> Grade:
    """1 for the right answer, 0 for any other."""
    right = float(said == question.answer)
    return Grade(Outcome.GRADED, right, {"exact": right, **scores})
