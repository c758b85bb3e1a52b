"""Graders fail as all machinery does: they are asked again, and what cannot be graded is said to be so. Never a silent zero."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from weightsync.clock import jitter
from weightsync.errors import Unavailable
from weightsync.rl.episode import checked
from weightsync.rl.records import Grade, Outcome

FIRST_WAIT_S = 0.05


@dataclass(frozen=True)
class Patience:
    """`attempts` in all, each of at most `limit_s`; waits between them double, up to `longest_wait_s`."""

    attempts: int = 8
    limit_s: float = 60.0
    longest_wait_s: float = 2.0


async def graded(grade: Callable[[], Awaitable[Grade]], patience: Patience | None = None) -> Grade:
    """What `grade` finds. `Unavailable`, its time running out, and an infrastructure error as its outcome are tried again.

    Any other error is the caller's to see: it would be the same again.
    """
    patience = patience or Patience()
    why, wait_s = "", FIRST_WAIT_S
    for attempt in range(patience.attempts):
        if attempt:
            await asyncio.sleep(jitter(wait_s))
            wait_s = min(2 * wait_s, patience.longest_wait_s)
        try:
            async with asyncio.timeout(patience.limit_s):
                found = checked(await grade())
        except Unavailable as error:
            why = str(error)
        except TimeoutError:
            why = f"not done within {patience.limit_s:g} s"
        else:
            if found.outcome is not Outcome.INFRA_ERROR:
                return found
            why = found.why
    return Grade(Outcome.INFRA_ERROR, 0.0, why=f"{patience.attempts} attempts, at last: {why}")
