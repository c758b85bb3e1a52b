"""What `verify` says: a line for everything that was looked at, then each damage once, with the versions that depend on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from typing import TYPE_CHECKING, Any

from weightsync.cli.output import Output

if TYPE_CHECKING:
    from weightsync.replica.verify import Finding

SHOWN = 10  # damages
_BRING_BACK = "bring it back with `weightsync repair`"


@dataclass
class _Damage:
    finding: "Finding"
    versions: list[int] = field(default_factory=list)


class Report:
    """Collects what was found. One damaged object is found again in every version that is built on it."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._damages: dict[tuple[str, str], _Damage] = {}

    @property
    def wrong(self) -> int:
        """How many different things are damaged."""
        return len(self._damages)

    def add(self, what: str, findings: "Sequence[Finding]", fine: str, version: int = 0) -> dict[str, Any]:
        """Says whether `what` is right; `version`: the one that the findings are of, where they are in the store."""
        self._out.line(f"BAD  {what}" if findings else f"ok   {fine}")
        found = [replace(one, remedy=_remedy(one.remedy)) for one in findings]
        for one in found:
            damage = self._damages.setdefault((one.kind, one.message), _Damage(one))
            if version and version not in damage.versions:
                damage.versions.append(version)
        return {"ok": not found, "findings": [{"what": one.what, **_document(one)} for one in found]}

    def show(self) -> None:
        """Each damage once; those that are put right in the same way together."""
        damages = sorted(self._damages.values(), key=lambda damage: damage.finding.remedy)
        for remedy, alike in groupby(damages[:SHOWN], key=lambda damage: damage.finding.remedy):
            self._out.line()
            for damage in alike:
                self._out.line(f"{_sentence(damage.finding)} ({damage.finding.kind})")
                if damage.versions:
                    self._out.line(f"     needed by {spans(damage.versions)}")
            if remedy:
                self._out.line(f"     fix: {remedy}")
        if len(damages) > SHOWN:
            self._out.line(f"     ... and {len(damages) - SHOWN} more (--json lists all)")
        if damages:
            self._out.line()

    def documents(self) -> list[dict[str, Any]]:
        """The damages for scripts."""
        return [{**_document(damage.finding), "versions": damage.versions} for damage in self._damages.values()]


def spans(numbers: Sequence[int]) -> str:
    """`version 2`, `versions 2 to 4, 7`; ascending."""
    counter = count()
    parts = []
    for _, run in groupby(numbers, key=lambda number: number - next(counter)):
        first, *rest = run
        parts.append(f"{first} to {rest[-1]}" if rest else str(first))
    return f"version{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


def _remedy(remedy: str) -> str:
    """Errors send people to this very command; here they need what comes next."""
    return _BRING_BACK if "`weightsync verify`" in remedy else remedy


def _sentence(finding: "Finding") -> str:
    said = finding.what in finding.message or finding.what.startswith("version ")
    return finding.message if said else f"{finding.what}: {finding.message}"


def _document(finding: "Finding") -> dict[str, str]:
    return {"kind": finding.kind, "message": finding.message, "remedy": finding.remedy}
