import subprocess
import sys
from pathlib import Path

import pytest

from weightsync.errors import Invalid, NotFound
from weightsync.store.file import FileStore
from weightsync.store.memory import MemoryStore, forget
from weightsync.store.open import open_store
from weightsync.store.s3 import S3Store


def test_file(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/with%20space")
    assert isinstance(store, FileStore)
    store.put("k", b"x")
    assert (tmp_path / "with space" / "k").read_bytes() == b"x"
    assert open_store(store.url).get("k", max_bytes=1).data == b"x"


def test_opening_makes_nothing(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/none")
    with pytest.raises(NotFound):
        store.get("k", max_bytes=1)
    assert list(store.list("")) == []
    store.delete("k")
    assert not (tmp_path / "none").exists()


def test_memory_is_shared_by_name() -> None:
    first = open_store("mem://shared-by-name")
    assert isinstance(first, MemoryStore)
    first.put("k", b"x")
    first.close()
    assert open_store("mem://shared-by-name").get("k", max_bytes=1).data == b"x"
    assert list(open_store("mem://another").list("")) == []
    forget("shared-by-name")
    assert list(open_store("mem://shared-by-name").list("")) == []


def test_s3() -> None:
    store = open_store("s3://bucket/a/b/?endpoint=http://127.0.0.1:9&region=eu-north-1")
    assert isinstance(store, S3Store)
    assert store.url == "s3://bucket/a/b"
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/a/path",
        "relative",
        "http://host/x",
        "file://host/x",
        "file:relative",
        "file:///x?y=1",
        "file:///x#y",
        "file:///a%00b",
        "s3://[::1",
        "s3://bucket/x?endpoint=",
        "s3://bucket/x?endpoint=ftp://host",
        "s3://bucket/x?endpoint=http://user:secret@host",
        "s3://bucket/x?endpoint=http://host:99999",
        "mem://",
        "mem://a/b",
        "s3://",
        "s3:///prefix",
        "s3://bucket/../x",
        "s3://bucket/x?endpont=http://typo",
        "s3://bucket/x?secret=y",
        "s3://bucket/x?endpoint=not-a-url",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_store(url)
    assert caught.value.remedy


LINK_LOCAL = [
    "169.254.169.254",
    "169.254.1.1:8333",
    "[fe80::1]:8333",
    "[fe80::1%25eth0]:8333",
    "[::ffff:169.254.169.254]",
    "[fd00:ec2::254]",
    "2852039166",
    "0xa9fea9fe",
    "169.254.43518",
    "metadata.google.internal",
    "METADATA.google.internal.",
    "instance-data",
    "100.100.100.200",
]


@pytest.mark.parametrize("host", LINK_LOCAL)
def test_metadata_services_are_no_stores_unless_asked(host: str) -> None:
    url = f"s3://bucket/x?endpoint=http://{host}&region=r"
    with pytest.raises(Invalid, match="link-local") as caught:
        open_store(url)
    assert "ALLOW_LINK_LOCAL" in caught.value.remedy


def test_link_local_endpoints_when_they_are_meant() -> None:
    open_store("s3://bucket/x?endpoint=http://169.254.7.7:8333&region=r", allow_link_local=True).close()
    for host in ("127.0.0.1:9", "10.0.0.1", "localhost:8333", "s3.example", "169.255.0.1", "[::1]:8333"):
        open_store(f"s3://bucket/x?endpoint=http://{host}&region=r").close()


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(Invalid, match="must not contain credentials") as caught:
        open_store("s3://key:hunter2@bucket/x")
    assert "hunter2" not in str(caught.value)


def test_boto3_is_loaded_only_for_s3() -> None:
    code = "import sys, weightsync.store.open as o; o.open_store('mem://x'); print([m for m in sys.modules if m.startswith('boto')])"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip() == "[]"
