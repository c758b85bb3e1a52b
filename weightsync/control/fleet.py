"""FleetService: who holds and serves what."""

import asyncio
from collections.abc import Iterator

from weightsync.clock import Clock
from weightsync.control.methods import Call
from weightsync.control.paging import fill, size_of
from weightsync.control.roster import Changes, Roster
from weightsync.control.runs import Runs
from weightsync.control.settings import Pace
from weightsync.errors import Invalid, Unavailable
from weightsync.format.keys import LATEST
from weightsync.format.limits import MAX_INTEGER
from weightsync.format.names import check_plain
from weightsync.v1 import fleet_pb2 as pb

MAX_PAGE = 500
MAX_ERROR = 512
MAX_LABEL = 128
MAX_FLEET_WATCHERS = 64  # people and dashboards, not hosts
GATHER_S = 0.25  # changes of so long go out together


class FleetServicer:
    """One method per call of the service."""

    def __init__(self, runs: Runs, pace: Pace, clock: Clock) -> None:
        self._runs = runs
        self._pace = pace
        self._clock = clock

    async def register(self, request: pb.RegisterRequest, call: Call) -> pb.RegisterResponse:
        """Makes a subscriber known."""
        name = check_plain(request.subscriber, "subscriber")
        call.speaks_for(name)
        opened = await self._runs.run(request.run)
        opened.roster.register(
            pb.Subscriber(
                name=name,
                region=_label(request.region, "region"),
                engine=_label(request.engine, "engine"),
                channel=check_plain(request.channel or LATEST, "channel"),
                registered_ms=int(self._clock.now_s() * 1000),
            )
        )
        return pb.RegisterResponse(report_interval_ms=int(self._pace.report_s * 1000), forget_after_ms=int(self._pace.forget_s * 1000))

    async def report(self, request: pb.ReportRequest, call: Call) -> pb.ReportResponse:
        """Says how one is."""
        call.speaks_for(check_plain(request.subscriber, "subscriber"))
        _check(request.report)
        opened = await self._runs.run(request.run)
        opened.roster.report(request.subscriber, request.report)
        return pb.ReportResponse()

    async def list_subscribers(self, request: pb.ListSubscribersRequest, _call: Call) -> pb.ListSubscribersResponse:
        """A page of them."""
        roster, size = (await self._runs.run(request.run)).roster, size_of(request.page_size, MAX_PAGE)
        found = (roster.get(name) for name in roster.names() if name > request.page_token)
        page, more = fill((one for one in found if request.region in ("", one.region)), size)
        return pb.ListSubscribersResponse(subscribers=page, next_page_token=page[-1].name if more else "")

    async def watch_fleet(self, request: pb.WatchFleetRequest, call: Call) -> None:
        """All of them, and then what changes."""
        roster = (await self._runs.run(request.run)).roster
        if roster.watchers >= MAX_FLEET_WATCHERS:
            raise Unavailable(f"{MAX_FLEET_WATCHERS} watches of this fleet are open already", remedy="retry later, or ask another server")
        roster.watchers += 1
        try:
            await self._watch(roster, call)
        finally:
            roster.watchers -= 1

    async def _watch(self, roster: Roster, call: Call) -> None:
        revision = 0
        while roster.ended is None:
            call.recheck()
            changes = roster.since(revision)
            for message in _messages(changes):
                await call.write(message.SerializeToString())
            revision = changes.revision
            await roster.wait(revision, self._pace.bookmark_s)
            await asyncio.sleep(GATHER_S)
        raise roster.ended


def _messages(changes: Changes) -> Iterator[pb.WatchFleetResponse]:
    """At least one message, so that a watcher hears that the server lives."""
    reset, gone = changes.reset, changes.gone
    pages = [changes.changed[at : at + MAX_PAGE] for at in range(0, len(changes.changed), MAX_PAGE)] or [[]]
    for number, page in enumerate(pages, 1):
        yield pb.WatchFleetResponse(reset=reset, changed=page, gone=gone, complete=number == len(pages))
        reset, gone = False, []


def _label(value: str, what: str) -> str:
    if len(value) > MAX_LABEL or not (value.isprintable() or value == ""):
        raise Invalid(f"{what} {value[:40]!r} is longer than {MAX_LABEL} characters or does not print")
    return value


def _check(report: pb.SubscriberReport) -> None:
    if len(report.error) > MAX_ERROR or len(report.error_kind) > MAX_LABEL:
        raise Invalid(f"the report's error has more than {MAX_ERROR} characters", remedy="cut it")
    if max(report.held_version, report.served_version, report.sequence, report.last_update.version) > MAX_INTEGER:
        raise Invalid("the report has numbers beyond 2^53")
