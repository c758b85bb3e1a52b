"""What a process says about itself: its log, its metrics, its health, and a word to the service manager."""

from weightsync.telemetry.logs import REDACTED, HumanFormatter, JsonFormatter, redact, setup

__all__ = ["REDACTED", "HumanFormatter", "JsonFormatter", "redact", "setup"]
