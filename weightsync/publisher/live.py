"""Publishing live tensors in the background of a training loop.

    with LivePublisher(publisher) as live:
        pending = live.publish(step, model.state_dict())     # returns when the tensors are copied; the trainer may go on
        ...
        pending.result()                                     # the committed version, or the error

A state that could not be published is warned about in the log, whether or not anyone asks for its result, and the next state carries its
changes. Leaving the block raises what kept the newest state from being published, unless its `result` has told.

Memory beside the base: the state in flight and at most one that waits. When training is faster than publishing, the newest state takes
the place of the one that waits; nothing is lost, since a delta is always made against what was committed last.
"""

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from weightsync.errors import Fenced, Invalid, WeightsyncError
from weightsync.publisher.publisher import Publisher
from weightsync.publisher.result import Published
from weightsync.publisher.state_dict import Plan, Staged, plan_tensors, stage

logger = logging.getLogger(__name__)


class Pending:
    """One call of `publish`."""

    def __init__(self, step: int | None) -> None:
        self.step = step
        self.superseded = False  # a newer state took its place before it was sent; that one's version contains its changes
        self.asked = False  # somebody has called `result`, and so learns of an error
        self._future: Future[Published] = Future()

    @property
    def done(self) -> bool:
        """Whether `result` would return at once."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> Published:
        """The version that contains these weights' changes. Raises what kept it from being committed, or `TimeoutError`.

        After `superseded` it is the version of the newer state (see its `step`).
        """
        self.asked = True
        return self._future.result(timeout_s)

    def _resolve(self, result: Published | BaseException) -> None:
        if isinstance(result, Published):
            self._future.set_result(result)
        else:
            self._future.set_exception(result)


@dataclass
class _Job:
    step: int | None
    staged: Staged
    buffer: NDArray[np.uint8]
    pendings: list[Pending]

    def resolve(self, result: Published | BaseException) -> None:
        for pending in self.pendings:
            pending._resolve(result)


class LivePublisher:
    """Owns `publisher` and one thread. `publish` may be called from any thread; calls wait for one another while they copy."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._entry = threading.Lock()
        self._changed = threading.Condition()
        self._waiting: _Job | None = None
        self._free: list[NDArray[np.uint8]] = []
        self._closed = False
        self._stopped: WeightsyncError | None = None
        self._failed: tuple[BaseException, list[Pending]] | None = None  # what the newest state failed with, and its calls
        self._thread = threading.Thread(target=self._run, name="weightsync-publish", daemon=True)
        self._thread.start()

    def publish(self, step: int | None, tensors: Mapping[str, Any], *, files: Mapping[str, bytes] | None = None) -> Pending:
        """Copies `tensors` (flat, torch or NumPy) and returns; `files` are small files to publish beside them.

        Raises `Invalid` or `Unsupported` for tensors that cannot be published, `Fenced` when a newer publisher has taken over.
        """
        with self._entry:
            self._check_open()
            plan = plan_tensors(tensors, self._publisher.chunking)
            replaced = self._take_waiting()
            try:
                buffer = self._buffer(plan, replaced)
                staged = stage(plan, buffer, files)
            except BaseException as error:
                if replaced:  # its memory is overwritten in part
                    replaced.resolve(error)
                raise
            pending = Pending(step)
            job = _Job(step, staged, buffer, [*(replaced.pendings if replaced else ()), pending])
            for older in job.pendings[:-1]:
                older.superseded = True
            self._hand_over(job)
            return pending

    def close(self) -> None:
        """Sends what waits, then ends the thread and closes the publisher. A second time is fine. Errors are in the results."""
        with self._entry, self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()
        self._publisher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
        if kind is None and self._failed is not None:
            failure, pendings = self._failed
            if not any(pending.asked for pending in pendings):
                raise failure

    def _check_open(self) -> None:
        with self._changed:
            if self._stopped is not None:
                raise self._stopped
            if self._closed:
                raise Invalid("this publisher is closed", remedy="open another one")

    def _take_waiting(self) -> _Job | None:
        with self._changed:
            job, self._waiting = self._waiting, None
            return job

    def _buffer(self, plan: Plan, replaced: _Job | None) -> NDArray[np.uint8]:
        with self._changed:
            spare = [replaced.buffer] if replaced else self._free[:1]
            self._free.clear()
        if spare and spare[0].nbytes == plan.layout.image_bytes:
            return spare[0]
        return np.empty(plan.layout.image_bytes, np.uint8)

    def _hand_over(self, job: _Job) -> None:
        with self._changed:
            if self._stopped is not None:
                job.resolve(self._stopped)
                return
            self._waiting = job
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None or self._closed)
                job, self._waiting = self._waiting, None
            if job is None:
                return
            result = self._publish(job)
            self._failed = None if isinstance(result, Published) else (result, job.pendings)
            job.resolve(result)
            with self._changed:
                self._free = [job.buffer]
            if isinstance(result, Fenced):
                self._stop(result)
                return

    def _publish(self, job: _Job) -> Published | BaseException:
        try:
            return self._publisher.publish(job.staged, step=job.step)
        except BaseException as error:  # noqa: BLE001  top of a thread: whatever it is belongs to who waits for the result
            logger.warning("step %s was not published: %s", "(none)" if job.step is None else job.step, error)
            return error

    def _stop(self, error: WeightsyncError) -> None:
        with self._changed:
            self._stopped = error
            job, self._waiting = self._waiting, None
        if job is not None:
            job.resolve(error)
