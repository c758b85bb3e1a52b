"""Hidden tests of a function. The sandbox is told the arguments and never the right results: those are compared outside.

A program that forges its output, patches the tester or looks around in its memory finds nothing that would help it.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from weightsync.rl.records import Grade, Outcome
from weightsync.rl.sandbox.api import Sandboxes

TESTER = """
import json, sys
out = sys.stdout
sys.stdout = sys.stderr
scope = {}
exec(compile(open("solution.py").read(), "solution.py", "exec"), scope)
for line in sys.stdin:
    try:
        said = json.dumps(scope[sys.argv[1]](*json.loads(line)))
    except Exception as error:
        said = json.dumps({"error": type(error).__name__})
    out.write(said + "\\n")
    out.flush()
"""


class Case(NamedTuple):
    """A call and its result; both are JSON values."""

    arguments: Sequence[Any]
    result: Any


async def grade_function(sandboxes: Sandboxes, source: str, function: str, cases: Sequence[Case], *, partly: bool = False) -> Grade:
    """Runs `source` in a sandbox of its own and calls `function` with each case's arguments.

    The reward is 1 when all results are right, else 0; with `partly`, the share of them. `passed` is that share. Raises `Unavailable`
    where the sandbox failed (`weightsync.rl.graders.retry`); what the program does, a crash or a loop, is its own.
    """
    sandbox = await sandboxes.create(files={"solution.py": source.encode("utf-8", "replace"), "tester.py": TESTER.encode()})
    try:
        calls = "".join(json.dumps(list(case.arguments)) + "\n" for case in cases)
        result = await sandbox.exec(["python", "tester.py", function], stdin=calls.encode(), now_s=0.0)
    finally:
        await sandbox.terminate()
    said = [_value(line) for line in result.stdout.splitlines()]
    right = sum(_same(mine, case.result) for mine, case in zip(said, cases, strict=False)) if len(said) <= len(cases) else 0
    passed = right / len(cases)
    why = "" if passed == 1 else f"{right} of {len(cases)}; {result.end} {result.code}"
    return Grade(Outcome.GRADED, passed if partly else float(passed == 1), {"passed": passed}, why)


class _NoValue:
    """What no right result equals."""


def _value(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return _NoValue()


def _same(mine: Any, right: Any) -> bool:
    """Equal as JSON: 1 and true differ, and so do 1 and 1.0."""
    return not isinstance(mine, _NoValue) and json.dumps(mine, sort_keys=True) == json.dumps(right, sort_keys=True)
