"""What went wrong, in words, as JSON and as an exit code."""

import json
import sys
import traceback
from dataclasses import dataclass

from weightsync.errors import WeightsyncError

FOUND_WRONG = 1
USED_WRONG = 2
BROKEN_PIPE = 141  # what a shell reports for a process that died of SIGPIPE


@dataclass(frozen=True)
class Failure:
    """One line for people, its stable kind, what to do, and the exit code."""

    kind: str
    message: str
    remedy: str
    exit_code: int

    def report(self, *, as_json: bool) -> None:
        """Says so on standard error; with `as_json` also as the JSON document on standard output. Secrets are taken out."""
        from weightsync.telemetry import redact

        message, remedy = redact(self.message), redact(self.remedy)
        print(f"error: {message} ({self.kind})", file=sys.stderr)
        if remedy:
            print(f"  fix: {remedy}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": {"kind": self.kind, "message": message, "remedy": remedy}}, ensure_ascii=False), flush=True)


_REMEDIES = {  # where an error does not say it better
    "unavailable": "check the network and the store (`weightsync doctor`), then retry",
    "outcome_unknown": "look with `weightsync versions` before you retry",
    "denied": "give this user access, then retry",
    "unauthenticated": "give the server a credential it knows (--token-file, or a client certificate)",
    "no_space": "free some space, then retry",
    "conflict": "look again (`weightsync versions`), then decide",
    "already_exists": "look again (`weightsync versions`), then decide",
    "fenced": "stop this publisher: a newer one has taken over",
    "corrupt": "do not use it; run `weightsync verify` to see how far the damage goes",
    "compacted": "take a newer version",
    "not_found": "check the name",
    "invalid": "see --help",
    "unsupported": "upgrade weightsync",
}

INTERRUPTION = Failure("interrupted", "stopped before it was done", "", 130)


def describe(error: BaseException) -> Failure:
    """The failure that `error` means. Whatever was not raised on purpose is a bug, and says how to see more."""
    if isinstance(error, WeightsyncError):
        return Failure(error.kind, error.message, error.remedy or _REMEDIES.get(error.kind, ""), error.exit_code)
    if isinstance(error, OSError):
        from weightsync.store.oserrors import from_os_error

        return describe(from_os_error(error, str(error.filename or "input or output")))
    if isinstance(error, MemoryError):
        return Failure("no_space", "not enough memory", "use a machine with more, or raise its limit (`ulimit -v`, the container's)", 3)
    message = f"{type(error).__name__}: {error}".strip().rstrip(":")
    return Failure("bug", message, "run it again with --debug to see where, and report it", FOUND_WRONG)


def usage(message: str, remedy: str = "") -> Failure:
    """The command line itself cannot be understood."""
    return Failure("usage", message, remedy or "see weightsync --help", USED_WRONG)


def show_trace(error: BaseException) -> None:
    """The traceback, without secrets, for `--debug`."""
    from weightsync.telemetry import redact

    print(redact("".join(traceback.format_exception(error))), file=sys.stderr, end="")
