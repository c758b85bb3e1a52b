"""Taking typed fields out of a parsed JSON object, strictly: missing, ill-typed and unknown ones are refused."""

import re
from collections.abc import Callable
from typing import Any, TypeVar

from weightsync.errors import Corrupt, Unsupported

T = TypeVar("T")
_HEX = re.compile(r"[0-9a-f]+")


class Fields:
    """One JSON object being read. Take every field that is known, then call `done`."""

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, dict):
            raise Corrupt(f"{what} is not an object")
        self._left = dict(value)
        self._what = what

    def _take(self, name: str, kind: type[T]) -> T:
        if name not in self._left:
            raise Corrupt(f"{self._what} lacks {name!r}")
        value = self._left.pop(name)
        if type(value) is not kind:
            raise Corrupt(f"{name!r} of {self._what} is not {kind.__name__}")
        return value

    def text(self, name: str, *, max_chars: int = 4096) -> str:
        """A string of at most `max_chars`."""
        value = self._take(name, str)
        if len(value) > max_chars:
            raise Corrupt(f"{name!r} of {self._what} is longer than {max_chars} characters")
        return value

    def hex(self, name: str, digits: int) -> str:
        """Exactly `digits` lower-case hexadecimal digits."""
        value = self._take(name, str)
        if len(value) != digits or not _HEX.fullmatch(value):
            raise Corrupt(f"{name!r} of {self._what} is not {digits} hexadecimal digits")
        return value

    def integer(self, name: str, *, least: int = 0) -> int:
        """An integer from `least` to 2^53 - 1."""
        value = self._take(name, int)
        if value < least:
            raise Corrupt(f"{name!r} of {self._what} is {value}, below {least}")
        return value

    def optional(self, name: str, take: Callable[[str], T]) -> T | None:
        """None where the field is null, else what `take` makes of it."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return take(name)

    def objects(self, name: str) -> list["Fields"]:
        """An array of objects."""
        return [Fields(value, f"{name!r} of {self._what}") for value in self._take(name, list)]

    def array(self, name: str) -> list[Any]:
        """An array of anything; the caller checks the members."""
        return self._take(name, list)

    def object(self, name: str) -> "Fields":
        """A nested object."""
        return Fields(self._take(name, dict), f"{name!r} of {self._what}")

    def mapping(self, name: str) -> dict[str, Any]:
        """A nested object whose keys are data; the caller checks the values."""
        return self._take(name, dict)

    def constant(self, name: str, expected: str | int) -> None:
        """A field that must hold `expected`; another value is a newer or a foreign record."""
        value = self._take(name, type(expected))
        if value != expected:
            raise Unsupported(f"{self._what} has {name} {value!r}, not {expected!r}", remedy="upgrade weightsync")

    def done(self) -> None:
        """Refuses what was not taken: every unknown field is critical, unless its name starts with `x-`."""
        unknown = sorted(name for name in self._left if not name.startswith("x-"))
        if unknown:
            raise Unsupported(f"{self._what} has the unknown field {unknown[0]!r}", remedy="upgrade weightsync")
