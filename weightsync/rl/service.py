"""The loop's gRPC service around the book, and its client.

server = LoopServer(Book(work), listen="127.0.0.1:7500"); address = server.start(); ...; server.stop()
client = LoopClient(address); client.lease(...)
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import Message

from weightsync.clock import SYSTEM, Clock
from weightsync.control.addresses import is_loopback
from weightsync.control.statuses import error_of, status_of, trailers_of
from weightsync.errors import Invalid, Unavailable, WeightsyncError
from weightsync.rl.book import Book, Worker
from weightsync.rl.checkpoint import Numbers
from weightsync.rl.messages import group_from, group_to, ranges_from, ranges_to, task_from, task_to
from weightsync.rl.records import Group, Task
from weightsync.rl_v1 import loop_pb2 as pb

SERVICE = "weightsync.rl.v1.LoopService"
MAX_GROUP_BYTES = 64 << 20  # of one message
MAX_WAIT_S = 5.0  # of `Take`; it is asked again
THREADS = 32
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_GROUP_BYTES),
    ("grpc.max_send_message_length", MAX_GROUP_BYTES),
    ("grpc.so_reuseport", 0),
]


class LoopServer:
    """Serves a book. One lock: calls are short but `Take`, which waits outside of it."""

    def __init__(self, book: Book, *, listen: str = "127.0.0.1:0", insecure: bool = False, clock: Clock = SYSTEM) -> None:
        """`listen`: HOST:PORT, port 0 for a free one. Raises `Invalid` for plaintext beyond this host without `insecure`."""
        if not insecure and not is_loopback(listen):
            raise Invalid(f"{listen} can be reached from elsewhere, in plaintext", remedy="listen on 127.0.0.1, or say --insecure")
        self._book, self._listen, self._clock = book, listen, clock
        self._changed = threading.Condition()
        self._server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix="loop"), options=_OPTIONS)

    def start(self) -> str:
        """Listens; HOST:PORT as it is now. Raises `Unavailable` when the address cannot be had."""
        table: dict[str, tuple[Any, Callable[[Any], Message]]] = {
            "Begin": (pb.BeginRequest, self._begin),
            "Lease": (pb.LeaseRequest, self._lease),
            "Submit": (pb.SubmitRequest, self._submit),
            "Take": (pb.TakeRequest, self._take),
            "Confirm": (pb.ConfirmRequest, self._confirm),
            "Status": (pb.StatusRequest, self._status),
        }
        handlers = {name: _handler(request, method) for name, (request, method) in table.items()}
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
        try:
            port = self._server.add_insecure_port(self._listen)
        except RuntimeError as error:
            raise Unavailable(f"{self._listen} cannot be listened on: {error}", remedy="is another hub running there?") from None
        self._server.start()
        return f"{self._listen.rpartition(':')[0]}:{port}"

    def stop(self) -> None:
        """Ends all calls."""
        self._server.stop(1.0).wait()

    def _begin(self, request: pb.BeginRequest) -> pb.BeginResponse:
        with self._changed:
            self._book.begin(ranges_from(request.consumed), request.step, request.version, self._clock.monotonic_s())
        return pb.BeginResponse()

    def _lease(self, request: pb.LeaseRequest) -> pb.LeaseResponse:
        with self._changed:
            task, give_up, why = self._book.lease(
                request.worker,
                Worker(request.region, request.version, self._clock.monotonic_s(), dict(request.metrics)),
                request.working_on,
                self._clock.monotonic_s(),
                wants=request.wants,
            )
            self._changed.notify_all()
        return pb.LeaseResponse(task=task_to(task) if task else None, give_up=give_up, why=why)

    def _submit(self, request: pb.SubmitRequest) -> pb.SubmitResponse:
        group = group_from(request.group)
        with self._changed:
            accepted = self._book.submit(group, self._clock.monotonic_s())
            self._changed.notify_all()
        return pb.SubmitResponse(accepted=accepted)

    def _take(self, request: pb.TakeRequest) -> pb.TakeResponse:
        until_s = self._clock.monotonic_s() + min(MAX_WAIT_S, request.wait_s)
        with self._changed:
            while True:
                groups = self._book.take(request.version, self._clock.monotonic_s())
                left_s = until_s - self._clock.monotonic_s()
                if groups or left_s <= 0:
                    return pb.TakeResponse(groups=[group_to(group) for group in groups])
                self._changed.wait(min(left_s, 0.5))

    def _confirm(self, request: pb.ConfirmRequest) -> pb.ConfirmResponse:
        with self._changed:
            consumed = ranges_from(request.consumed)
            self._book.confirm(consumed, request.step, request.version, dict(request.metrics), self._clock.monotonic_s())
        return pb.ConfirmResponse()

    def _status(self, request: pb.StatusRequest) -> pb.StatusResponse:
        del request
        with self._changed:
            return status_of_book(self._book, self._clock.monotonic_s())


def status_of_book(book: Book, now_s: float) -> pb.StatusResponse:
    """What the book says."""
    regions = [
        pb.RegionStatus(
            region=name,
            groups=one.groups,
            lag_max_versions=one.max_versions,
            lag_max_s=one.max_s,
            lag_mean_versions=one.sum_versions / max(1, one.groups),
        )
        for name, one in sorted(book.regions.items())
    ]
    working = [lease.worker for lease in book.leases.values()]
    workers = [
        pb.WorkerStatus(
            worker=name,
            region=one.region,
            version=one.version,
            working_on=working.count(name),
            silent_s=now_s - one.seen_s,
            metrics=dict(one.metrics),
        )
        for name, one in sorted(book.workers.items())
    ]
    return pb.StatusResponse(
        step=book.step,
        version=book.ages.newest,
        consumed=len(book.consumed),
        queued=len(book.queue) + len(book.taken),
        leased=len(book.leases),
        stale=book.counts.stale,
        duplicates=book.counts.duplicates,
        expired=book.counts.expired,
        regions=regions,
        workers=workers,
        metrics=dict(book.metrics),
    )


class LoopClient:
    """Calls raise `weightsync.errors`, `Unavailable` where the hub does not answer within `timeout_s`. Safe from many threads."""

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self.address, self._timeout_s = address, timeout_s
        options = [*_OPTIONS, ("grpc.max_reconnect_backoff_ms", 2_000), ("grpc.initial_reconnect_backoff_ms", 100)]
        self._channel = grpc.insecure_channel(address, options)

    def begin(self, consumed: Numbers, step: int, version: int) -> None:
        """The trainer begins."""
        self._call("Begin", pb.BeginRequest(consumed=ranges_to(consumed), step=step, version=version), pb.BeginResponse)

    def lease(
        self, worker: str, region: str, version: int, *, working_on: Iterable[int], metrics: Mapping[str, float], wants: bool
    ) -> tuple[Task | None, list[int], str]:
        """See `Book.lease`."""
        request = pb.LeaseRequest(worker=worker, region=region, version=version, working_on=working_on, wants=wants, metrics=dict(metrics))
        answer = self._call("Lease", request, pb.LeaseResponse)
        return task_from(answer.task) if answer.HasField("task") else None, list(answer.give_up), answer.why

    def submit(self, group: Group) -> bool:
        """See `Book.submit`."""
        return bool(self._call("Submit", pb.SubmitRequest(group=group_to(group)), pb.SubmitResponse).accepted)

    def take(self, version: int, wait_s: float = MAX_WAIT_S) -> list[Group]:
        """See `Book.take`; waits for `wait_s` at most."""
        answer = self._call("Take", pb.TakeRequest(version=version, wait_s=wait_s), pb.TakeResponse)
        return [group_from(group) for group in answer.groups]

    def confirm(self, consumed: Numbers, step: int, version: int, metrics: Mapping[str, float]) -> None:
        """See `Book.confirm`."""
        request = pb.ConfirmRequest(consumed=ranges_to(consumed), step=step, version=version, metrics=dict(metrics))
        self._call("Confirm", request, pb.ConfirmResponse)

    def status(self) -> pb.StatusResponse:
        """How it goes."""
        return self._call("Status", pb.StatusRequest(), pb.StatusResponse)

    def close(self) -> None:
        """Ends all calls."""
        self._channel.close()

    def _call(self, name: str, request: Message, response: Any) -> Any:
        method = self._channel.unary_unary(
            f"/{SERVICE}/{name}", request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise error_of(error, self.address) from None
        except ValueError:
            raise Invalid(f"the connection to {self.address} is closed") from None


def _handler(request: Any, method: Callable[[Any], Message]) -> Any:
    def answer(message: Any, context: grpc.ServicerContext) -> Message:
        try:
            return method(message)
        except WeightsyncError as error:
            context.set_trailing_metadata(trailers_of(error))
            context.abort(status_of(error), error.message)
            raise

    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=request.FromString, response_serializer=lambda made: made.SerializeToString()
    )
