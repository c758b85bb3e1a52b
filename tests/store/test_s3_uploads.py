"""Uploads in parts that were begun and never completed, on a real server."""

import pytest

from weightsync.store.s3 import S3Store

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("credentials")]

KEY = "run/shards/1-2-1/" + "a" * 64


def test_pending_uploads_are_found_below_the_prefix_and_aborted(server):
    store = S3Store(server.bucket, "pending", endpoint=server.endpoint, region="us-east-1")
    for key in (KEY, KEY, KEY.replace("run", "other")):
        store._client.call(lambda sdk, key=key: sdk.create_multipart_upload(Bucket=server.bucket, Key=f"pending/{key}"), "begin")
    found = list(store.pending_uploads("run/"))
    assert [upload.key for upload in found] == [KEY, KEY]
    assert len({upload.upload_id for upload in found}) == 2
    assert all(upload.begun_s > 1_600_000_000 for upload in found)
    for upload in found:
        store.abort_upload(upload)
        store.abort_upload(upload)  # one that is gone is fine
    assert list(store.pending_uploads("run/")) == []
    assert len(list(store.pending_uploads("other/"))) == 1
    store.close()
