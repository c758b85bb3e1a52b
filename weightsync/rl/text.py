"""Text as tokens: the ASCII codes, one token a character, so that what was said and what was drawn are the same thing.

Token 0 ends a turn. There is nothing to merge and nothing to guess: `decode(encode(text)) == text`, and back.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Invalid

END = 0
VOCABULARY = 128


def encode(text: str) -> NDArray[np.int32]:
    """The tokens of `text`. Raises `Invalid` for what is not ASCII, and for the character NUL, which is the end of a turn."""
    if not text.isascii() or "\0" in text:
        culprit = next(character for character in text if not 0 < ord(character) < VOCABULARY)
        raise Invalid(f"{culprit!r} is not in the vocabulary", remedy="say it in ASCII: see weightsync.rl.text.printable")
    return np.frombuffer(text.encode("ascii"), np.uint8).astype(np.int32)


def decode(tokens: Sequence[int] | NDArray[Any]) -> str:
    """The text of `tokens`, without tokens that end turns. Raises `Invalid` for what is outside the vocabulary."""
    array = np.asarray(tokens, np.int64)
    if array.size and (array.min() < 0 or array.max() >= VOCABULARY):
        raise Invalid(f"tokens from {array.min()} to {array.max()} reach out of the vocabulary of {VOCABULARY}")
    return array[array != END].astype(np.uint8).tobytes().decode("ascii")


def printable(text: str) -> str:
    """`text` with what the vocabulary lacks as `?`: for what comes from outside, as the output of a program."""
    return "".join(character if 0 < ord(character) < VOCABULARY else "?" for character in text)
