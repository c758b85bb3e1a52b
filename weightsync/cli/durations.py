"""Times as people write them: `90s`, `30m`, `24h`, `7d`."""

import re

from weightsync.errors import Invalid

_SHAPE = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str, flag: str) -> int:
    """The time that `text` means. Raises `Invalid` naming the flag."""
    found = _SHAPE.fullmatch(text.strip())
    if found is None:
        raise Invalid(f"{flag} {text!r} is no time", remedy="give a whole number and a unit: 90s, 30m, 24h or 7d")
    return int(found[1]) * _MS[found[2]]
