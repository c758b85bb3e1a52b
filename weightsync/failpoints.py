"""Named places where a test makes the process die, fail or stall.

    WEIGHTSYNC_FAILPOINTS="publish.before_head=kill@2,fetch.shard=raise:ENOSPC,stage.apply=sleep:500"

Actions: `kill` (SIGKILL to this process), `raise:ERRNO` (an `OSError` of that errno name), `sleep:MILLISECONDS`. `@n` acts at the n-th
pass only (from 1); without it every pass acts. The variable is read once, at import; unset, a failpoint costs one look at an empty dict.
"""

import errno
import os
import re
import signal
import threading
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from weightsync.clock import SYSTEM
from weightsync.errors import Invalid

VARIABLE = "WEIGHTSYNC_FAILPOINTS"

# Every failpoint in the code. A test compares this list with the calls, so a name can neither be misspelt nor outlive its call.
POINTS: frozenset[str] = frozenset(
    {
        "engine.write",
        "gc.condemned",
        "gc.delete",
        "gc.marked",
        "gc.snapshot",
        "publish.after_head",
        "publish.after_shard",
        "publish.before_head",
        "publish.before_manifest",
        "publish.before_promote",
        "publish.before_shard",
        "publish.claimed",
        "publish.mid_diff",
        "publish.shards_done",
        "publish.staged",
        "publish.start",
        "store.file.publish",
        "store.file.published",
        "store.file.sync",
        "store.file.write",
        "subscribe.applied",
        "subscribe.before_fetch",
        "subscribe.before_mark",
        "subscribe.before_out",
        "subscribe.before_swap",
        "subscribe.fetched",
        "subscribe.head_seen",
        "subscribe.journal_open",
        "subscribe.marked",
        "subscribe.mid_apply",
        "subscribe.out_written",
        "subscribe.swapped",
        "subscribe.switched",
        "trainer.consumed",
        "trainer.saved",
    }
)

_RULE = re.compile(
    r"(?P<name>[a-z0-9_.]+)=(?:(?P<kill>kill)|raise:(?P<errno>[A-Z0-9]+)|sleep:(?P<ms>[0-9]{1,7}))(?:@(?P<nth>[1-9][0-9]{0,8}))?"
)
_REMEDY = f"{VARIABLE} is a comma-separated list of NAME=kill|raise:ERRNO|sleep:MILLISECONDS, each with an optional @NTH"


@dataclass
class Rule:
    """What one failpoint does. `nth` 0 means every pass."""

    name: str
    errno_code: int | None = None
    sleep_ms: int | None = None
    nth: int = 0
    passes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def hit(self) -> None:
        """Counts a pass and acts if it is the one."""
        with self.lock:
            self.passes += 1
            due = self.nth in (0, self.passes)
        if not due:
            return
        if self.errno_code is not None:
            raise OSError(self.errno_code, os.strerror(self.errno_code), f"failpoint {self.name}")
        if self.sleep_ms is not None:
            SYSTEM.sleep_s(self.sleep_ms / 1000)
            return
        os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str, known: Container[str] = POINTS) -> dict[str, Rule]:
    """The rules that `text` sets, by name; raises `Invalid` for a name outside `known`, an unknown action or a repeated name."""
    rules: dict[str, Rule] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        rule = _parse_rule(part)
        if rule.name not in known:
            raise Invalid(f"failpoint {rule.name!r} does not exist", remedy="see POINTS in weightsync/failpoints.py for the names")
        if rule.name in rules:
            raise Invalid(f"failpoint {rule.name!r} is set twice", remedy=_REMEDY)
        rules[rule.name] = rule
    return rules


def _parse_rule(part: str) -> Rule:
    match = _RULE.fullmatch(part)
    if match is None:
        raise Invalid(f"failpoint rule {part!r} cannot be read", remedy=_REMEDY)
    code = getattr(errno, match["errno"], None) if match["errno"] else None
    if match["errno"] and not isinstance(code, int):
        raise Invalid(f"failpoint rule {part!r} names no errno of this system", remedy=_REMEDY)
    return Rule(match["name"], code, int(match["ms"]) if match["ms"] else None, int(match["nth"] or 0))


_armed: Mapping[str, Rule] = parse(os.environ.get(VARIABLE, ""))


def failpoint(name: str) -> None:
    """Marks a place called `name`; does nothing unless the environment says otherwise."""
    rule = _armed.get(name)
    if rule is not None:
        rule.hit()
