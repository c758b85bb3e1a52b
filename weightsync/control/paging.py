"""Pages: how many entries, from where on, and not more bytes than a message may have."""

from collections.abc import Iterable
from typing import TypeVar

from google.protobuf.message import Message

from weightsync.errors import Invalid

M = TypeVar("M", bound=Message)

DEFAULT_SIZE = 100
MAX_PAGE_BYTES = 512 << 10


def size_of(asked: int, most: int) -> int:
    """How many entries to give."""
    return min(asked or DEFAULT_SIZE, most)


def number_in(token: str) -> int | None:
    """The number in a page token; None for the first page. Raises `Invalid`."""
    if not token:
        return None
    if not (token.isascii() and token.isdecimal() and len(token) <= 16):
        raise Invalid(f"page token {token[:32]!r} is not one of ours", remedy="take next_page_token of the page before as it is")
    return int(token)


def fill(entries: Iterable[M], size: int) -> tuple[list[M], bool]:
    """The first entries, and whether there are more: up to `size` of them, and up to `MAX_PAGE_BYTES`."""
    page: list[M] = []
    nbytes = 0
    for entry in entries:
        nbytes += entry.ByteSize()
        if page and (len(page) >= size or nbytes > MAX_PAGE_BYTES):
            return page, True
        page.append(entry)
    return page, False
