"""Canonical JSON (RFC 8785) with integers only: one value, one byte string; anything else is refused."""

import json
from typing import Any

import rfc8785

from weightsync.errors import Corrupt
from weightsync.format.limits import MAX_INTEGER


def to_bytes(value: Any) -> bytes:
    """Canonical bytes of `value`, made of dict, list, str, int, bool and None."""
    return rfc8785.dumps(value)


def parse(data: bytes, what: str) -> Any:
    """The value whose canonical bytes are exactly `data`; raises `Corrupt` naming `what`.

    Refuses duplicate keys, floats, integers beyond 2^53, deep nesting, and any spelling that is not the canonical one.
    """
    try:
        value = json.loads(data, object_pairs_hook=_unique, parse_float=_refuse, parse_constant=_refuse, parse_int=_integer)
        canonical = rfc8785.dumps(value)
    except (ValueError, RecursionError, rfc8785.CanonicalizationError) as error:
        raise Corrupt(f"{what} is not canonical JSON: {error}") from None
    if canonical != data:
        raise Corrupt(f"{what} is not canonical JSON: its bytes are spelt in another way")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:40]} is not an integer")


def _integer(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MAX_INTEGER:
        raise ValueError(f"{text[:40]} is beyond 2^53")
    return int(text)
