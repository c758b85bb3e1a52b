import io
import json
import logging

import pytest

from weightsync import telemetry


@pytest.fixture
def log():
    """Restores the package's logger after the test."""
    logger = logging.getLogger("weightsync")
    before = logger.handlers, logger.level, logger.propagate
    yield logging.getLogger("weightsync.test")
    logger.handlers, logger.level, logger.propagate = before


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("GET s3://alice:hunter2@host/bucket", "hunter2"),
        ("https://h/b?X-Amz-Credential=AKI%2F1&X-Amz-Signature=deadbeef&x=1", "deadbeef"),
        ("key AKIAIOSFODNN7EXAMPLE refused", "AKIAIOSFODNN7EXAMPLE"),
        ("aws_secret_access_key = wJalrXUtnFEMI", "wJalrXUtnFEMI"),
        ("Authorization: Bearer abc.def.ghi", "abc.def.ghi"),
        ('{"token": "tok-123"}', "tok-123"),
        ("AWS_SESSION_TOKEN=zzz999", "zzz999"),
        ("-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----", "MC4CAQ"),
    ],
)
def test_secrets_are_taken_out(text, secret):
    assert secret not in telemetry.redact(text)
    assert telemetry.REDACTED in telemetry.redact(text)


@pytest.mark.parametrize("text", ["fetched shards/3-7-6/ab12 in 0.2 s", "3 tokens per second", "s3://bucket/run"])
def test_other_text_is_left_alone(text):
    assert telemetry.redact(text) == text


def test_json_lines_carry_fields_and_no_secrets(log):
    stream = io.StringIO()
    telemetry.setup("INFO", as_json=True, stream=stream)
    log.info("version %d", 7, extra={"fields": {"bytes": 12, "session_token": "tok-123", "url": "s3://a:pw@h/b"}})
    entry = json.loads(stream.getvalue())
    assert entry["message"] == "version 7"
    assert entry["level"] == "info"
    assert entry["bytes"] == 12
    assert entry["session_token"] == telemetry.REDACTED
    assert "pw" not in entry["url"]


def test_an_error_keeps_its_traceback_on_one_json_line(log):
    stream = io.StringIO()
    telemetry.setup(as_json=True, stream=stream)
    try:
        raise RuntimeError("password=hunter2")
    except RuntimeError:
        log.exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "RuntimeError" in json.loads(line)["error"]
    assert "hunter2" not in line


def test_human_lines_respect_the_level(log):
    stream = io.StringIO()
    telemetry.setup("warning", stream=stream)
    log.info("quiet")
    log.warning("loud", extra={"fields": {"run": "r1"}})
    (line,) = stream.getvalue().splitlines()
    assert "WARNING" in line
    assert line.endswith("weightsync.test: loud  run=r1")


def test_setup_twice_does_not_write_twice(log):
    stream = io.StringIO()
    telemetry.setup(stream=stream)
    telemetry.setup(stream=stream)
    log.warning("once")
    assert len(stream.getvalue().splitlines()) == 1
