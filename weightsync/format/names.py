"""Names that come from outside. They are data: what is kept from them never becomes a path unchecked."""

import re
import unicodedata

from weightsync.errors import Invalid
from weightsync.format.limits import MAX_NAME_BYTES

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +=@-]{0,199}")
_RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{port}{n}" for port in ("COM", "LPT") for n in range(1, 10))}


def check_plain(name: str, what: str) -> str:
    """A run, channel or holder name: it becomes part of a key. Raises `Invalid`."""
    if not _PLAIN.fullmatch(name) or ".." in name:
        raise Invalid(f"{what} {name[:80]!r} is not allowed", remedy="use letters, digits, '.', '_' and '-', at most 128, no '..'")
    return name


def check_tensor(name: str) -> str:
    """A tensor name: any printable text in NFC of at most 1,024 bytes. Raises `Invalid`."""
    if not name or len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise Invalid(f"tensor name {name[:80]!r} is empty or longer than {MAX_NAME_BYTES} bytes")
    if not name.isprintable() or any(0xD800 <= ord(c) <= 0xDFFF for c in name):
        raise Invalid(f"tensor name {name[:80]!r} has characters that do not print")
    if not name.isascii() and unicodedata.normalize("NFC", name) != name:
        raise Invalid(f"tensor name {name[:80]!r} is not in Unicode normal form C: another name could look the same")
    return name


def check_file(name: str) -> str:
    """A relative file name inside a checkpoint directory. Raises `Invalid`."""
    segments = name.split("/")
    good = len(segments) <= 8 and all(
        _SEGMENT.fullmatch(s) and not s.endswith((".", " ")) and s.split(".")[0].upper() not in _RESERVED for s in segments
    )
    if not good:
        raise Invalid(f"file name {name[:80]!r} is not allowed in a checkpoint", remedy="rename it, or keep it outside the directory")
    return name
