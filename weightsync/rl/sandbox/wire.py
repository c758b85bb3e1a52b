"""Messages between a host and its sandboxes: a JSON object and a body, each with its length before it. Only the standard library.

What comes out of a sandbox is bounded and checked as anything from outside.
"""

import json
import socket
import struct
from typing import Any

from weightsync.errors import Corrupt

HEAD = struct.Struct("<II")
MAX_JSON = 1 << 20
MAX_BODY = 1 << 28
PIECE = 1 << 20

Fields = dict[str, Any]


def frame(fields: Fields, body: bytes = b"") -> bytes:
    """The message as bytes."""
    text = json.dumps(fields).encode()
    return HEAD.pack(len(text), len(body)) + text + body


def lengths(head: bytes) -> tuple[int, int]:
    """Those of the JSON text and of the body. Raises `Corrupt` beyond the bounds."""
    text, body = HEAD.unpack(head)
    if text > MAX_JSON or body > MAX_BODY:
        raise Corrupt(f"a message of a sandbox has {text} + {body} bytes")
    return text, body


def fields_of(text: bytes) -> Fields:
    """The JSON object. Raises `Corrupt` for anything else."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"a message of a sandbox is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise Corrupt("a message of a sandbox is not an object")
    return fields


def receive(connection: socket.socket) -> tuple[Fields, bytes]:
    """The next message, blocking. Raises `EOFError` when the other side is gone."""
    text, body = lengths(_exactly(connection, HEAD.size))
    return fields_of(_exactly(connection, text)), _exactly(connection, body)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        piece = connection.recv(min(count - len(parts), PIECE))
        if not piece:
            raise EOFError
        parts += piece
    return bytes(parts)
