"""Logging: one line per event for people, one JSON object per line for machines, secrets taken out of both.

Modules log through `logging.getLogger(__name__)` and hand structured values over as `extra={"fields": {...}}`.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

REDACTED = "***"

_SECRETS = (
    re.compile(r"(?<=://)[^/\s@]+(?=@)"),  # credentials in a URL
    re.compile(r"(?i)(?<=x-amz-signature=)[^&\s\"']+"),
    re.compile(r"(?i)(?<=x-amz-credential=)[^&\s\"']+"),
    re.compile(r"(?i)(?<=x-amz-security-token=)[^&\s\"']+"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)
_NAMED_SECRET = re.compile(
    r"(?i)\b((?:[\w-]*_|[\w-]*-)?(?:secret|token|password|passwd|authorization)(?:[_-](?:access[_-])?key)?\"?'?\s*[=:]\s*)"
    r"(?:(?:bearer|basic)\s+)?[^\s,;&]+"
)
_SECRET_FIELD = re.compile(r"(?i)secret|token|password|passwd|authorization|private_?key")


def redact(text: str) -> str:
    """`text` without URL credentials, presigned query values, access key ids, private keys, and values of things named like secrets."""
    for pattern in _SECRETS:
        text = pattern.sub(REDACTED, text)
    return _NAMED_SECRET.sub(rf"\1{REDACTED}", text)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    if not isinstance(fields, Mapping):
        return {}
    return {str(name): REDACTED if _SECRET_FIELD.search(str(name)) else value for name, value in fields.items()}


def _trace(record: logging.LogRecord) -> str:
    return "".join(traceback.format_exception(*record.exc_info)).rstrip() if record.exc_info else ""


def _stamp(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class HumanFormatter(logging.Formatter):
    """`TIME LEVEL logger: message  name=value ...`, times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it where there is one."""
        pairs = "".join(f"  {name}={value}" for name, value in _fields(record).items())
        line = f"{_stamp(record)} {record.levelname:<7} {record.name}: {record.getMessage()}{pairs}"
        trace = _trace(record)
        return redact(f"{line}\n{trace}" if trace else line)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, the record's fields, `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON. Strings are redacted before they are quoted; values JSON does not know become strings."""
        entry: dict[str, object] = {
            **_fields(record),
            "time": _stamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _trace(record):
            entry["error"] = trace
        return json.dumps({name: _plain(value) for name, value in entry.items()}, ensure_ascii=False)


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(value if isinstance(value, str) else str(value))


def setup(level: str = "warning", *, as_json: bool = False, stream: TextIO | None = None) -> None:
    """Sends the log of `weightsync.*` to `stream` (standard error by default) and nowhere else; may be called again.

    `level` is a name of the logging module in any case; an unknown one raises `ValueError`.
    """
    logger = logging.getLogger("weightsync")
    logger.setLevel(level.upper())
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else HumanFormatter())
    logger.handlers = [handler]
    logger.propagate = False
