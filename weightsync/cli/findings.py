"""What `doctor` and `verify` find: each with a level, a detail, and what to do about it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from weightsync.cli import failures
from weightsync.errors import WeightsyncError


class Level(Enum):
    """From harmless to fatal."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"
    UNAVAILABLE = "unavailable"


_EXIT = {Level.OK: 0, Level.WARNING: 0, Level.WRONG: 1, Level.UNAVAILABLE: 3}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    level: Level
    detail: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """As `--json` shows it."""
        return {"name": self.name, "level": self.level.value, "detail": self.detail, "remedy": self.remedy}


def ok(name: str, detail: str) -> Finding:
    """Nothing to do."""
    return Finding(name, Level.OK, detail)


def warning(name: str, detail: str, remedy: str) -> Finding:
    """Works, but not as well as it could."""
    return Finding(name, Level.WARNING, detail, remedy)


def attempt(name: str, check: Callable[[], Finding]) -> Finding:
    """What `check` finds; its error becomes a finding too."""
    try:
        return check()
    except (WeightsyncError, OSError) as error:
        failure = failures.describe(error)
        level = Level.UNAVAILABLE if failure.exit_code == 3 else Level.WRONG
        return Finding(name, level, failure.message, failure.remedy)


def exit_code(findings: list[Finding]) -> int:
    """3 when something could not be looked at, else 1 when something is wrong, else 0."""
    return max((_EXIT[finding.level] for finding in findings), default=0)
