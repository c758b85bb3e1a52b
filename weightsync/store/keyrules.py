"""Which keys a backend accepts, the same for all of them, so that a store can be copied from any backend to any other."""

import re

from weightsync.errors import Invalid

MAX_KEY_BYTES = 1024  # S3's limit
MAX_SEGMENT_BYTES = 200  # below the 255 of common file systems

# Printable ASCII but `/` and `\`. A leading dot is refused: it covers `.` and `..` and leaves the backends' own files room.
_SEGMENT = re.compile(rf"(?!\.)[!-.0-\[\]-~]{{1,{MAX_SEGMENT_BYTES}}}")
_REMEDY = "keys come from weightsync.format.keys; names from outside must be checked there"


def split_key(key: str) -> list[str]:
    """The segments of `key`. Raises `Invalid` for a key that could leave the store or that some backend cannot hold."""
    segments = key.split("/")
    if len(key) > MAX_KEY_BYTES or not all(_SEGMENT.fullmatch(segment) for segment in segments):
        raise Invalid(f"key {key[:200]!r} is not allowed in a store", remedy=_REMEDY)
    return segments


def split_prefix(prefix: str) -> tuple[list[str], str]:
    """The whole segments of a listing's prefix and the beginning of the next one, which may be empty. Raises `Invalid`."""
    *segments, rest = prefix.split("/")
    if segments:
        split_key("/".join(segments))
    if rest:
        split_key(rest)
    return segments, rest
