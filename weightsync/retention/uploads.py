"""Multipart uploads that nobody will complete: they cost bytes and no listing shows them. Only some stores have such a thing."""

from weightsync.format.keys import RunKeys, digests_name, payload_name
from weightsync.format.operators import Boundary
from weightsync.retention.survey import COLLECTOR
from weightsync.store.api import ObjectStore, PendingUploads

ABANDONED_S = 86_400.0  # an upload of a writer that may still be alive


def abort_stale(store: ObjectStore, keys: RunKeys, boundary: Boundary, *, epoch: int, before_s: float, now_s: float) -> int:
    """Aborts uploads begun before `before_s` by publishers that were fenced (epochs below `epoch`), and any older than a day.

    Returns how many. A store without uploads in parts has none.
    """
    if not isinstance(store, PendingUploads):
        return 0
    aborted = 0
    for upload in list(store.pending_uploads(keys.prefix)):
        name, writer = _group(keys, upload.key)
        past = boundary.gone(name) or (writer.isdecimal() and int(writer) < epoch)
        if upload.begun_s < now_s - ABANDONED_S or (upload.begun_s <= before_s and past and not writer.startswith(COLLECTOR)):
            store.abort_upload(upload)
            aborted += 1
    return aborted


def _group(keys: RunKeys, key: str) -> tuple[str, str]:
    """(name for the boundary, writer) of an object; empty where it belongs to no version."""
    shard, leaves = keys.parse_shard(key), keys.parse_digests(key)
    if shard is not None:
        return payload_name(shard[1], shard[2], shard[0]), shard[0]
    return (digests_name(leaves[0], leaves[1]), leaves[0]) if leaves is not None else ("", "")
