from collections.abc import Iterator
from pathlib import Path

import pytest

from weightsync.store.s3 import download, upload
from weightsync.testing.s3_server import S3Server, seaweedfs


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS for the whole session."""
    with seaweedfs(Path(tmp_path_factory.mktemp("seaweedfs"))) as running:
        yield running


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits objects where S3 just allows it, so that tests need not move much."""
    monkeypatch.setattr(upload, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(upload, "SINGLE_BYTES", 5 << 20)
    monkeypatch.setattr(download, "RANGE_BYTES", 3 << 20)


@pytest.fixture
def credentials(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's credentials in the environment, and nothing else that boto3 would look at."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
