"""LeaseService: written to the store for subscribers, who can only read there."""

from collections.abc import Callable

from weightsync.clock import Clock
from weightsync.control.lease_book import LeaseBook
from weightsync.control.methods import Call
from weightsync.control.runs import Runs
from weightsync.control.settings import Limits
from weightsync.control.threads import Threads
from weightsync.control.versions import check_number
from weightsync.errors import Invalid, NotFound, Unavailable
from weightsync.format.names import check_plain
from weightsync.v1 import leases_pb2 as pb

MAX_HOLDER = 100  # characters: the version's number is put behind it


class LeaseServicer:
    """One method per call of the service. What there is stands in the store; it is counted before a new one is granted."""

    def __init__(self, runs: Runs, threads: Threads, limits: Limits, clock: Clock) -> None:
        self._runs = runs
        self._threads = threads
        self._limits = limits
        self._clock = clock

    async def acquire(self, request: pb.AcquireRequest, call: Call) -> pb.AcquireResponse:
        """Takes or extends."""
        return pb.AcquireResponse(lease=await self._write(request, call, self._make_room))

    async def renew(self, request: pb.RenewRequest, call: Call) -> pb.RenewResponse:
        """Extends."""
        return pb.RenewResponse(lease=await self._write(request, call, _must_hold))

    async def release(self, request: pb.ReleaseRequest, call: Call) -> pb.ReleaseResponse:
        """Gives back."""
        holder, version = _named(request, call)
        opened = await self._runs.run(request.run)
        async with opened.leases_lock:
            await self._threads.call(opened.leases.drop, holder, version)
        return pb.ReleaseResponse()

    async def _write(
        self, request: "pb.AcquireRequest | pb.RenewRequest", call: Call, check: Callable[[LeaseBook, str, int], None]
    ) -> pb.Lease:
        holder, version = _named(request, call)
        opened = await self._runs.run(request.run)
        async with opened.leases_lock:  # or two at once would both find room
            await self._threads.call(check, opened.leases, holder, version)
            most_ms = int(self._limits.lease_s * 1000)
            expires_ms = int(self._clock.now_s() * 1000) + min(request.ttl_ms or most_ms, most_ms)
            await self._threads.call(opened.leases.put, holder, version, expires_ms)
        return pb.Lease(holder=holder, version=version, expires_ms=expires_ms)

    def _make_room(self, book: LeaseBook, holder: str, version: int) -> None:
        if book.holds(holder, version):
            return
        held = book.held()
        if held.total() >= self._limits.leases:
            raise Unavailable(f"the run has {held.total()} leases already", remedy="retry when some have expired")
        if held[holder] >= self._limits.leases_per_holder:
            raise Unavailable(f"{holder!r} has {held[holder]} leases already", remedy="release one, or wait until one expires")


def _must_hold(book: LeaseBook, holder: str, version: int) -> None:
    if not book.holds(holder, version):
        raise NotFound(f"{holder!r} has no lease of version {version}", remedy="acquire it again")


def _named(request: "pb.AcquireRequest | pb.RenewRequest | pb.ReleaseRequest", call: Call) -> tuple[str, int]:
    holder = check_plain(request.holder, "holder")
    call.speaks_for(holder)
    if len(holder) > MAX_HOLDER:
        raise Invalid(f"holder {holder[:40]!r}... has more than {MAX_HOLDER} characters", remedy="take a shorter name")
    return holder, check_number(request.version, "version", least=1)
