"""ChannelService: where channels point, and moving them."""

from collections.abc import Callable, Iterator

from weightsync.catalog import Catalog
from weightsync.control.convert import to_channel, to_move
from weightsync.control.methods import Call
from weightsync.control.paging import fill, number_in, size_of
from weightsync.control.runs import Runs, no_channel
from weightsync.control.threads import Threads
from weightsync.control.versions import check_number
from weightsync.errors import Invalid
from weightsync.format.keys import LATEST
from weightsync.format.names import check_plain
from weightsync.v1 import channels_pb2 as pb
from weightsync.v1 import version_pb2

MAX_PAGE = 1000
MAX_CHANNELS_PAGE = 100
MAX_MOVE_BYTES = 64 << 10


class ChannelServicer:
    """One method per call of the service."""

    def __init__(self, runs: Runs, threads: Threads, notify: Callable[[str, str], None]) -> None:
        self._runs = runs
        self._threads = threads
        self._notify = notify

    async def get_channel(self, request: pb.GetChannelRequest, _call: Call) -> pb.GetChannelResponse:
        """One channel."""
        opened, channel = await self._runs.run(request.run), check_plain(request.channel or LATEST, "channel")
        head = await self._threads.call(opened.catalog.head, channel)
        if head is None:
            raise no_channel(request.run, channel)
        return pb.GetChannelResponse(channel=to_channel(head))

    async def list_channels(self, request: pb.ListChannelsRequest, _call: Call) -> pb.ListChannelsResponse:
        """A page of them."""
        opened, size = await self._runs.run(request.run), size_of(request.page_size, MAX_CHANNELS_PAGE)
        return await self._threads.call(_channels_page, opened.catalog, request.page_token, size)

    async def move_channel(self, request: pb.MoveChannelRequest, _call: Call) -> pb.MoveChannelResponse:
        """Swaps in the caller's move."""
        opened, channel = await self._runs.run(request.run), check_plain(request.channel, "channel")
        expected = check_number(request.expected_sequence, "expected_sequence")
        if len(request.record) > MAX_MOVE_BYTES:
            raise Invalid(f"the move has {len(request.record)} bytes, more than {MAX_MOVE_BYTES}")
        head = await self._threads.call(opened.catalog.apply_move, channel, request.record, expected_sequence=expected)
        self._notify(request.run, channel)
        return pb.MoveChannelResponse(channel=to_channel(head))

    async def channel_history(self, request: pb.ChannelHistoryRequest, _call: Call) -> pb.ChannelHistoryResponse:
        """A page of moves."""
        opened, channel = await self._runs.run(request.run), check_plain(request.channel or LATEST, "channel")
        below, size = number_in(request.page_token), size_of(request.page_size, MAX_PAGE)
        return await self._threads.call(_history_page, opened.catalog, channel, below, size)


def _channels_page(catalog: Catalog, after: str, size: int) -> pb.ListChannelsResponse:
    def read() -> Iterator[version_pb2.Channel]:
        for name in sorted(catalog.channels()):
            head = catalog.head(name) if name > after else None
            if head is not None:
                yield to_channel(head)

    page, more = fill(read(), size)
    return pb.ListChannelsResponse(channels=page, next_page_token=page[-1].move.channel if more else "")


def _history_page(catalog: Catalog, channel: str, below: int | None, size: int) -> pb.ChannelHistoryResponse:
    head = catalog.head(channel)
    if head is None:
        raise no_channel(catalog.keys.run, channel)
    walk = ((move, digest) for move, digest in catalog.history(head) if below is None or move.sequence < below)
    page, more = fill((pb.PastMove(move=to_move(move), move_digest=digest) for move, digest in walk), size)
    return pb.ChannelHistoryResponse(moves=page, next_page_token=str(page[-1].move.sequence) if more else "")
