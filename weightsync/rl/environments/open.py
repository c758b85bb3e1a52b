"""From an environment's name in a task to the environment."""

from weightsync.errors import Invalid
from weightsync.rl.api import Environment
from weightsync.rl.environments.arithmetic import Arithmetic
from weightsync.rl.environments.gym import Gym
from weightsync.rl.environments.python import Python
from weightsync.rl.environments.sort import Sort
from weightsync.rl.sandbox.api import Sandboxes
from weightsync.rl.sandbox.zygote import Zygote

NAMES = "sort[:DIGITS], arithmetic[:DIGITS], gym:TASK and python"
MAX_DIGITS = 18


def open_environment(name: str, sandboxes: Sandboxes | None = None) -> Environment:
    """The environment of that name; without `sandboxes`, one that runs programs makes its own when it first plays.

    Raises `Invalid` for names that mean nothing.
    """
    kind, _, detail = name.partition(":")
    if kind == "sort":
        return Sort(_digits(name, detail, 6), name)
    if kind == "arithmetic":
        return Arithmetic(_digits(name, detail, 2), name)
    if kind == "gym" and detail:
        return Gym(detail)
    if name == "python":
        return Python(sandboxes or Zygote())
    raise Invalid(f"no environment {name!r}", remedy=f"there are {NAMES}")


def _digits(name: str, detail: str, default: int) -> int:
    if not detail:
        return default
    if not detail.isdecimal() or not 1 <= int(detail) <= MAX_DIGITS:
        raise Invalid(f"environment {name!r}: {detail!r} is no number of digits", remedy=f"1 to {MAX_DIGITS}")
    return int(detail)
