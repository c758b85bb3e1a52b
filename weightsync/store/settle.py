"""Create an object until it is certain what stands under its key."""

from collections.abc import Callable

from blake3 import blake3

from weightsync.clock import SYSTEM, Clock, jitter
from weightsync.errors import AlreadyExists, NotFound, OutcomeUnknown, Unavailable, WeightsyncError
from weightsync.store.api import Buffer, ObjectStore
from weightsync.store.retry import DEFAULT, Backoff, RetryPolicy, is_retryable, retrying

LOOKS = 3
BLOCK_BYTES = 8 << 20  # of a large object held while it is compared


def ensure(
    store: ObjectStore,
    key: str,
    data: Buffer,
    *,
    policy: RetryPolicy = DEFAULT,
    clock: Clock = SYSTEM,
    jitter: Callable[[float], float] = jitter,
) -> None:
    """Returns when `key` holds exactly `data`, whoever wrote it.

    Raises `AlreadyExists` when other bytes stand there, and whatever ended the attempts: `Unavailable`, `Denied`, `NoSpace`, `Invalid`.
    """
    backoff = Backoff(policy, clock=clock, jitter=jitter)
    while True:
        try:
            store.create(key, data)
            return
        except (AlreadyExists, OutcomeUnknown) as error:
            if retrying(lambda: _holds(store, key, data), policy=policy, clock=clock, jitter=jitter):
                return
            failure: WeightsyncError = _unsettled(store, key) if isinstance(error, AlreadyExists) else error
        except Unavailable as error:
            if not is_retryable(error):
                raise
            failure = error
        # Not there, as far as this read can tell: the write was lost, or the read is stale.
        backoff.wait(failure)


def _unsettled(store: ObjectStore, key: str) -> Unavailable:
    return Unavailable(f"object {key!r} in {store.url} exists, yet cannot be read", remedy="retry when the store has caught up")


def _holds(store: ObjectStore, key: str, data: Buffer) -> bool:
    """Whether `key` holds `data`; False when nothing is seen there. Raises `AlreadyExists` for other bytes."""
    view = memoryview(data).cast("B")
    try:
        if store.stat(key).size_bytes == view.nbytes:
            expected = blake3(view).digest()
            # A bit may have flipped on the way here: only the same refusal again and again says that other bytes stand there.
            if any(_digest(store, key, view.nbytes) == expected for _ in range(LOOKS)):
                return True
    except NotFound:
        return False
    raise AlreadyExists(f"object {key!r} in {store.url} holds other bytes", remedy="take another key; never overwrite it")


def _digest(store: ObjectStore, key: str, size_bytes: int) -> bytes:
    hasher = blake3()
    block = memoryview(bytearray(min(size_bytes, BLOCK_BYTES)))
    for start in range(0, size_bytes, BLOCK_BYTES):
        part = block[: min(BLOCK_BYTES, size_bytes - start)]
        store.read_into(key, part, start=start)
        hasher.update(part)
    return hasher.digest()
