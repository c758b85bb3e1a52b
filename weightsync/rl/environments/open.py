"""From an environment's name in a task to the environment."""

from weightsync.errors import Invalid
from weightsync.rl.api import Environment
from weightsync.rl.environments.arithmetic import Arithmetic
from weightsync.rl.environments.sort import Sort

NAMES = "sort[:DIGITS], arithmetic[:DIGITS]"
MAX_DIGITS = 18


def open_environment(name: str) -> Environment:
    """The environment of that name. Raises `Invalid` for names that mean nothing."""
    kind, _, detail = name.partition(":")
    if kind == "sort":
        return Sort(_digits(name, detail, 6), name)
    if kind == "arithmetic":
        return Arithmetic(_digits(name, detail, 2), name)
    raise Invalid(f"no environment {name!r}", remedy=f"there are {NAMES}")


def _digits(name: str, detail: str, default: int) -> int:
    if not detail:
        return default
    if not detail.isdecimal() or not 1 <= int(detail) <= MAX_DIGITS:
        raise Invalid(f"environment {name!r}: {detail!r} is no number of digits", remedy=f"1 to {MAX_DIGITS}")
    return int(detail)
