"""The six promises of a watch, and what happens at its edges."""

import threading

import grpc
import pytest

from tests.control.plane import RUN, Plane, moves
from weightsync.control.access import Gate, Tokens
from weightsync.control.client import ControlClient
from weightsync.control.dial import OPTIONS
from weightsync.control.settings import Limits, Pace
from weightsync.control.statuses import HistoryCompacted, WatchEnded, error_of
from weightsync.control.watch import PATH, Bookmark, Moved, Watch
from weightsync.errors import Compacted, Corrupt, Invalid, NotFound, Unavailable
from weightsync.store.memory import MemoryStore
from weightsync.v1 import versions_pb2 as pb


def raw(address: str, after: int | None = 0, channel: str = "", more=()):
    """A bare stream, without our client's patience."""
    opened = grpc.insecure_channel(address, [*OPTIONS, *more])
    method = opened.unary_stream(PATH, response_deserializer=pb.WatchVersionsResponse.FromString)
    call = method(pb.WatchVersionsRequest(run=RUN, channel=channel, after_sequence=after).SerializeToString())
    call.opened = opened  # else it is closed with its last reference
    return call


def test_all_moves_from_the_start_then_new_ones_as_they_come(plane):
    run = plane.run(3)
    client = plane.client()
    watch = plane.watch(client)
    assert [event.sequence for event in moves(watch, 4)] == [1, 2, 3, 4]
    run.publish()
    client.notify(RUN)
    (event,) = moves(watch, 1)
    assert event == Moved(run.claim.head.move, run.claim.head.digest)
    assert watch.position == 5


def test_without_a_sequence_it_starts_where_the_channel_is(plane):
    plane.run(3)
    (event,) = moves(plane.watch(plane.client(), after=None), 1)
    assert (event.sequence, event.move.version) == (4, 3)


def test_a_stream_begins_with_a_bookmark(plane):
    plane.run(1)
    assert plane.watch(plane.client(), after=2).next(20) == Bookmark(2)


def test_bookmarks_come_as_signs_of_life(plane):
    plane.run(1)
    client = plane.client(plane.serve(pace=Pace(poll_s=3600, bookmark_s=0.05)))
    watch = plane.watch(client, after=2)
    assert [watch.next(20) for _ in range(3)] == [Bookmark(2)] * 3


def test_a_lost_notice_costs_one_poll(plane):
    run = plane.run(1)
    watch = plane.watch(plane.client(plane.serve(pace=Pace(poll_s=0.1))), after=2)
    run.publish()
    assert moves(watch, 1)[0].move.version == 2


def test_moves_are_found_in_order_however_many_there_are_between_two_looks(plane):
    run = plane.run(1)
    client = plane.client()
    watch = plane.watch(client, after=0)
    moves(watch, 2)
    run.publish(9)
    client.notify(RUN)
    assert [event.move.version for event in moves(watch, 9)] == list(range(2, 11))


@pytest.mark.parametrize("watchers", [1, 20])
def test_the_store_is_asked_once_however_many_watch(plane, watchers):
    run = plane.run(1)
    client = plane.client()
    watches = [plane.watch(client) for _ in range(watchers)]
    for watch in watches:
        moves(watch, 2)
    run.publish()
    before = len(plane.store.log)
    client.notify(RUN)
    for watch in watches:
        moves(watch, 1)
    assert [operation.name for operation in plane.store.log[before:]] == ["get_if_changed"]


def test_any_channel_can_be_watched(plane):
    run = plane.run(3)
    run.catalog.move("serving", 2, expected_sequence=0, who="op", why="")
    client = plane.client()
    watch = plane.watch(client, "serving")
    assert moves(watch, 1)[0].move.version == 2
    run.catalog.move("serving", 1, expected_sequence=1, who="op", why="worse")
    client.notify(RUN, "serving")
    assert moves(watch, 1)[0].move.why == "worse"


def test_latest_of_a_new_run_can_be_waited_for(plane):
    catalog = plane.catalog()
    catalog.open_run("tiny")
    client = plane.client()
    watch = plane.watch(client)
    assert watch.next(20) == Bookmark(0)
    plane.run(1)
    client.notify(RUN)
    assert [event.sequence for event in moves(watch, 2)] == [1, 2]


@pytest.mark.parametrize(("run", "channel"), [("nope", "latest"), (RUN, "nope")])
def test_what_does_not_exist_is_not_watched(plane, run, channel):
    plane.run(1)
    with pytest.raises(NotFound, match="nope"), plane.client().watch(run, channel) as watch:
        watch.next(20)


def test_below_the_kept_history_it_says_where_to_start(plane):
    plane.run(10)  # sequences 1 to 11
    client = plane.client(plane.serve(limits=Limits(history=4)))
    with pytest.raises(HistoryCompacted) as caught:
        plane.watch(client, after=6).next(20)
    error = caught.value
    assert isinstance(error, Compacted)
    assert (error.oldest_sequence, error.sequence, error.version.version) == (8, 11, 10)
    assert [event.sequence for event in moves(plane.watch(client, after=error.oldest_sequence - 1), 4)] == [8, 9, 10, 11]


def test_the_kept_history_moves_on_with_the_head(plane):
    run = plane.run(3)
    client = plane.client(plane.serve(limits=Limits(history=4)))
    watch = plane.watch(client)
    moves(watch, 4)
    run.publish(10)  # more than is kept, between two looks: whoever was before that must start anew
    client.notify(RUN)
    with pytest.raises(HistoryCompacted):
        watch.next(20)
    assert len(moves(plane.watch(client, after=10), 4)) == 4


def test_a_watch_ahead_of_the_server_waits_for_it(plane):
    """A client that was at another server, which had looked into the store later."""
    run = plane.run(2)
    client = plane.client()
    watch = plane.watch(client, after=5)
    assert watch.next(20) == Bookmark(5)
    run.publish(3)  # sequences 4 to 6
    client.notify(RUN)
    assert moves(watch, 1)[0].sequence == 6


def test_a_watch_goes_on_at_another_server_without_gap_or_repetition():
    with Plane() as plane, Plane(plane.store) as second:
        run = plane.run(3)
        with plane.client() as client, client.watch(RUN, after_sequence=0) as watch:
            seen = [event.sequence for event in moves(watch, 2)]
            position = seen[-1]
        run.publish(2)
        seen += [event.sequence for event in moves(second.watch(second.client(), after=position), 4)]
        assert seen == [1, 2, 3, 4, 5, 6]


def test_a_server_that_stops_says_where_to_go_on():
    with Plane() as plane:
        plane.run(3)
        address = plane.serve()
        call = raw(address)
        got = [next(call) for _ in range(5)]
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    ended = error_of(caught.value, address)
    assert isinstance(ended, WatchEnded)
    assert ended.after_sequence == got[-1].moved.move.sequence == 4
    call.opened.close()


def test_the_client_waits_for_a_server_that_is_away():
    store = MemoryStore("test")
    with Plane(store) as plane:
        run = plane.run(1)
        address = plane.serve()
        client = Plane().client(address)
        watch = client.watch(RUN, after_sequence=0)
        moves(watch, 2)
    run.publish()
    assert watch.next(0.3) is None
    with Plane(store) as plane:
        plane.serve(listen=address)
        assert moves(watch, 1)[0].sequence == 3
        watch.close()
        client.close()


def test_a_reader_that_takes_nothing_is_dropped_with_its_position(plane):
    run = plane.run(1)
    for _ in range(200):
        run.catalog.move("latest", 1, expected_sequence=None, who="op", why="y" * 4000)
    address = plane.serve(limits=Limits(write_s=0.3))
    call = raw(address, more=[("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)])
    assert next(call).bookmark.sequence == 0
    threading.Event().wait(1.5)  # nothing is read meanwhile: the buffers between us are full
    got = []
    with pytest.raises(grpc.RpcError) as caught:
        got.extend(message.moved.move.sequence for message in call)
    ended = error_of(caught.value, address)
    assert isinstance(ended, WatchEnded), ended
    assert 0 <= got[-1] - ended.after_sequence <= 1  # the one that was being sent may still have come
    assert got == list(range(1, got[-1] + 1))
    assert got[-1] < 201
    call.opened.close()


def test_a_rewritten_history_ends_the_watch_and_a_new_one_sees_it_anew(plane):
    run = plane.run(3)
    client = plane.client()
    watch = plane.watch(client)
    moves(watch, 4)
    key = run.catalog.keys.head("latest")
    other = Plane()
    other.run(6)
    plane.store.put(key, other.store.get(key, max_bytes=1 << 20).data)
    client.notify(RUN)
    with pytest.raises(Corrupt):
        watch.next(20)


def test_a_head_that_went_back_is_corrupt_unless_it_is_an_answer_from_the_past(plane):
    run = plane.run(2)
    key = run.catalog.keys.head("latest")
    old = plane.store.get(key, max_bytes=1 << 20).data
    run.publish()
    client = plane.client()
    watch = plane.watch(client)
    moves(watch, 4)
    new = plane.store.get(key, max_bytes=1 << 20).data
    plane.store.put(key, old)  # what a lagging replica of the store would answer
    client.notify(RUN)
    assert watch.next(0.3) is None
    plane.store.put(key, new)
    run.publish()
    client.notify(RUN)
    assert moves(watch, 1)[0].sequence == 5


def test_a_store_that_is_away_keeps_the_watch(plane):
    run = plane.run(1)
    client = plane.client()
    watch = plane.watch(client)
    moves(watch, 2)
    from weightsync.store.memory_faults import Faults

    run.publish()
    plane.store.set_faults(Faults(unavailable=1.0))
    client.notify(RUN)
    assert watch.next(0.3) is None
    plane.store.set_faults(Faults())
    client.notify(RUN)
    assert moves(watch, 1)[0].sequence == 3


def test_too_many_watches_are_refused(plane):
    plane.run(1)
    address = plane.serve(limits=Limits(watchers=2))
    calls = [raw(address) for _ in range(2)]
    for call in calls:
        next(call)
    calls.append(raw(address))  # now that the others stand: streams overtake each other
    with pytest.raises(grpc.RpcError) as caught:
        next(calls[2])
    error = error_of(caught.value, address)
    assert type(error) is Unavailable
    assert "2 watches are open already" in error.message
    for call in calls:
        call.opened.close()


def test_one_name_has_so_many(plane, tmp_path):
    plane.run(1)
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        'tokens = [{token = "named-0123456789abc", role = "subscriber", name = "host-1"}, {token = "other-0123456789abc", role = "reader"}]'
    )
    address = plane.serve(gate=Gate(tokens=Tokens(tokens)), limits=Limits(watchers_per_name=2))
    named, other = (plane.client(address, token=f"{name}-0123456789abc") for name in ("named", "other"))
    watches = [plane.watch(named) for _ in range(2)]
    for watch in watches:
        moves(watch, 2)
    third = plane.watch(named)
    assert third.next(0.3) is None
    assert len(moves(plane.watch(other), 2)) == 2
    watches[0].close()
    moves(third, 2)


class Lies:
    """A server's side of a stream, from a list."""

    address = "liar:1"

    def __init__(self, *messages):
        self._messages = messages

    def stream(self, *_):
        return self

    def __iter__(self):
        return iter(self._messages)

    def cancel(self):
        pass


def told(move, digest):
    from weightsync.control.convert import to_move

    return pb.WatchVersionsResponse(moved=pb.Moved(move=to_move(move), move_digest=digest))


@pytest.mark.parametrize("lie", ["gap", "again", "digest", "channel", "bookmark"])
def test_a_server_that_breaks_a_promise_is_not_believed(plane, lie):
    run = plane.run(3)
    history = {move.sequence: (move, digest) for move, digest in run.catalog.history(run.claim.head)}
    messages = {
        "gap": [told(*history[1]), told(*history[3])],
        "again": [told(*history[1]), told(*history[1])],
        "digest": [told(history[1][0], history[2][1])],
        "channel": [told(*history[1])],
        "bookmark": [told(*history[1]), pb.WatchVersionsResponse(bookmark=pb.Bookmark(sequence=3))],
    }[lie]
    with (
        Watch(Lies(*messages), RUN, "serving" if lie == "channel" else "latest", 0) as watch,
        pytest.raises(Corrupt, match=r"gap|does not match|the server says"),
    ):
        moves(watch, 5)


def test_a_client_that_was_closed_says_so_to_calls_and_to_watches():
    client = ControlClient("127.0.0.1:1")
    client.close()
    with pytest.raises(Invalid, match="is closed"):
        client.get_channel("run", "latest")
    with client.watch("run", "latest") as watch, pytest.raises(Invalid, match="is closed"):
        watch.next(10.0)
