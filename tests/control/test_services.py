"""Versions, channels, fleet and leases, through a real server and client."""

import pytest

from tests.catalog.test_boundary import write as mark
from tests.catalog.test_signed import OPERATOR, PUBLISHER, READER, with_key
from tests.catalog.world import World
from tests.control.plane import RUN, SLOW, Plane
from weightsync.control.convert import from_move, is_whole
from weightsync.control.settings import Limits, Pace
from weightsync.errors import Compacted, Conflict, Denied, Invalid, NotFound, Unavailable
from weightsync.testing.clock import ManualClock
from weightsync.v1 import fleet_pb2, versions_pb2


class TestVersions:
    def test_a_version_is_what_its_manifest_says(self, plane):
        run = plane.run(2)
        version = plane.client().get_version(RUN, 2)
        record = run.catalog.manifest_of(2)
        assert (version.run, version.version, version.step, version.base) == (RUN, 2, 20, 1)
        assert (version.manifest.digest, version.manifest.nbytes) == (record.ref.manifest, record.nbytes)
        assert version.parent.version == 1
        assert version.root == record.manifest.root

    def test_versions_are_listed_newest_first_and_once(self, plane):
        run = plane.run(5)
        run.catalog.move("latest", 2, expected_sequence=None, who="op", why="")  # names 2 again
        again = plane.run(2)
        assert again.claim.head.move.version == 7
        client = plane.client()
        for size in (0, 1, 3, 100):
            found = list(client.list_versions(RUN, page_size=size))
            assert [entry.version for entry in found] == [7, 6, 5, 4, 3, 2, 1]
        assert found[-1].sequence == 2
        assert found[0].who == "trainer"
        assert found[0].manifest.digest == run.catalog.find(7).manifest

    def test_pages_do_not_shift(self, plane):
        run = plane.run(6)
        found = plane.client().list_versions(RUN, page_size=2)
        first = [next(found).version, next(found).version]
        run.publish(3)
        assert first + [entry.version for entry in found] == [6, 5, 4, 3, 2, 1]

    def test_a_run_without_versions_has_none(self, plane):
        plane.run(0)
        assert list(plane.client().list_versions(RUN)) == []

    def test_a_collected_version(self):
        world = World()
        world.publish(3)
        mark(world, condemned=[1])
        world.delete("versions/1/manifest")
        with Plane(world.store) as plane, pytest.raises(Compacted, match="version 1"):
            plane.client().get_version(RUN, 1)

    def test_notices_for_what_nobody_watches_cost_nothing(self, plane):
        plane.run(1)
        client = plane.client()
        before = len(plane.store.log)
        client.notify(RUN)
        client.notify("nope", "x")
        assert len(plane.store.log) == before


class TestChannels:
    def move(self, plane, version, channel="serving", policy=None, **more):
        more = {"expected_sequence": None, "who": "op", "why": "because"} | more
        return plane.catalog(policy=policy).plan_move(channel, version, **more)

    def test_moving_and_looking(self, plane):
        plane.run(3)
        client = plane.client()
        made = self.move(plane, 2)
        channel = client.move_channel(RUN, "serving", made.envelope.data, expected_sequence=0)
        assert channel == client.get_channel(RUN, "serving")
        assert from_move(channel.move) == made.move
        assert is_whole(channel.move, channel.move_digest)
        assert [channel.move.channel for channel in client.list_channels(RUN)] == ["latest", "serving"]

    def test_doing_it_again_is_the_same(self, plane):
        plane.run(3)
        client, made = plane.client(), self.move(plane, 2)
        first = client.move_channel(RUN, "serving", made.envelope.data, expected_sequence=0)
        assert client.move_channel(RUN, "serving", made.envelope.data, expected_sequence=0) == first

    def test_a_stale_sequence(self, plane):
        plane.run(3)
        client, late = plane.client(), self.move(plane, 1)
        client.move_channel(RUN, "serving", self.move(plane, 2).envelope.data, expected_sequence=0)
        with pytest.raises(Conflict, match="'op' moved channel 'serving' to version 2"):
            client.move_channel(RUN, "serving", late.envelope.data, expected_sequence=0)

    def test_history_is_paged_from_the_log(self, plane):
        run = plane.run(3)
        for version in (1, 2, 3, 1):
            run.catalog.move("serving", version, expected_sequence=None, who="op", why=f"to {version}")
        client = plane.client()
        for size in (0, 1, 3):
            found = list(client.channel_history(RUN, "serving", page_size=size))
            assert [(entry.move.sequence, entry.move.version) for entry in found] == [(4, 1), (3, 3), (2, 2), (1, 1)]
        assert all(is_whole(entry.move, entry.move_digest) for entry in found)

    def test_pages_of_channels(self, plane):
        run = plane.run(1)
        names = sorted(["latest", *(f"c{n}" for n in range(7))])
        for name in names[:-1]:
            run.catalog.move(name, 1, expected_sequence=0, who="op", why="")
        assert [channel.move.channel for channel in plane.client().list_channels(RUN, page_size=3)] == names

    def test_the_server_holds_no_key(self):
        with Plane(policy=READER) as plane:
            plane.run(2, policy=with_key(PUBLISHER))
            client = plane.client()
            made = self.move(plane, 1, policy=with_key(OPERATOR))
            assert client.move_channel(RUN, "serving", made.envelope.data, expected_sequence=0).move.version == 1
            forged = self.move(plane, 2, policy=with_key(OPERATOR))
            stranger = forged.envelope.data.replace(forged.envelope.signatures[0].sig.encode(), b"0" * 128)
            with pytest.raises(Invalid, match="not signed by a trusted operator key"):
                client.move_channel(RUN, "serving", stranger, expected_sequence=1)

    def test_a_renewal_is_shown(self, plane):
        run = plane.run(1)
        later = 2_000_000_000_000
        run.catalog.move("serving", 1, expected_sequence=0, who="op", why="", expires_ms=later)
        run.catalog.renew("serving", later + 5)
        channel = plane.client().get_channel(RUN, "serving")
        assert (channel.move.expires_ms, channel.renewal.expires_ms, channel.renewal.renewal) == (later, later + 5, 1)


REPORT = fleet_pb2.SubscriberReport(
    held_version=2,
    served_version=1,
    sequence=3,
    stage=fleet_pb2.STAGE_PREPARE,
    fetched_bytes=10,
    last_update=fleet_pb2.UpdateTimings(version=2, pause_us=7),
)


class TestFleet:
    def test_who_registers_and_reports_is_listed(self, plane):
        plane.run(1)
        client = plane.client()
        answer = client.register(RUN, "host-1", region="eu", engine="vllm", channel="serving")
        assert (answer.report_interval_ms, answer.forget_after_ms) == (10_000, 60_000)
        client.report(RUN, "host-1", REPORT)
        (found,) = client.list_subscribers(RUN)
        assert (found.name, found.region, found.engine, found.channel, found.report) == ("host-1", "eu", "vllm", "serving", REPORT)
        assert found.seen_ms >= found.registered_ms > 0

    def test_by_region_and_in_pages(self, plane):
        plane.run(1)
        client = plane.client()
        for number in range(7):
            client.register(RUN, f"host-{number}", region="eu" if number % 2 else "us")
        assert [one.name for one in client.list_subscribers(RUN, page_size=2)] == [f"host-{n}" for n in range(7)]
        assert [one.name for one in client.list_subscribers(RUN, region="eu", page_size=2)] == ["host-1", "host-3", "host-5"]

    def test_who_is_not_known_must_register(self, plane):
        plane.run(1)
        with pytest.raises(NotFound, match="register"):
            plane.client().report(RUN, "host-1", REPORT)

    def test_who_is_silent_is_forgotten(self, plane):
        plane.run(1)
        clock = ManualClock()
        client = plane.client(plane.serve(clock=clock))
        client.register(RUN, "host-1")
        clock.advance(61)
        assert list(client.list_subscribers(RUN)) == []
        with pytest.raises(NotFound):
            client.report(RUN, "host-1", REPORT)

    def test_there_is_room_for_so_many(self, plane):
        plane.run(1)
        client = plane.client(plane.serve(limits=Limits(subscribers=2)))
        for name in ("a", "b", "a"):
            client.register(RUN, name)
        with pytest.raises(Unavailable, match="2 subscribers"):
            client.register(RUN, "c")

    @pytest.mark.parametrize(
        "report",
        [
            fleet_pb2.SubscriberReport(error="x" * 513),
            fleet_pb2.SubscriberReport(error_kind="x" * 200),
            fleet_pb2.SubscriberReport(held_version=2**63),
        ],
    )
    def test_reports_that_cannot_be_used(self, plane, report):
        plane.run(1)
        client = plane.client()
        client.register(RUN, "host-1")
        with pytest.raises(Invalid):
            client.report(RUN, "host-1", report)

    def test_a_watch_has_all_and_then_what_changes(self, plane):
        plane.run(1)
        clock = ManualClock()
        client = plane.client(plane.serve(clock=clock, pace=Pace(poll_s=3600, bookmark_s=0.2)))
        client.register(RUN, "a")
        client.register(RUN, "b")
        stream = client.watch_fleet(RUN)
        first = next(stream)
        assert (first.reset, first.complete, [one.name for one in first.changed]) == (True, True, ["a", "b"])
        client.report(RUN, "a", REPORT)
        while not (changed := next(stream)).changed:
            pass
        assert (changed.reset, [one.name for one in changed.changed], changed.changed[0].report) == (False, ["a"], REPORT)
        clock.advance(61)
        client.register(RUN, "c")
        while not (changed := next(stream)).gone:
            pass
        assert sorted(changed.gone) == ["a", "b"]
        stream.close()

    def test_a_large_fleet_comes_in_parts(self, plane):
        plane.run(1)
        client = plane.client()
        for number in range(501):
            client.register(RUN, f"host-{number:03}")
        stream = client.watch_fleet(RUN)
        parts = [next(stream), next(stream)]
        stream.close()
        assert [len(part.changed) for part in parts] == [500, 1]
        assert [(part.reset, part.complete) for part in parts] == [(True, False), (False, True)]

    def test_a_server_that_stops_ends_it(self):
        with Plane() as plane:
            plane.run(1)
            stream = plane.client().watch_fleet(RUN)
            next(stream)
        with pytest.raises(Unavailable):
            for _ in stream:
                pass


class TestLeases:
    def test_they_stand_in_the_store(self, plane):
        run = plane.run(3)
        clock = ManualClock()
        client = plane.client(plane.serve(clock=clock))
        lease = client.acquire(RUN, "host-1", 2, ttl_s=60)
        assert lease.expires_ms == int(clock.now_s() * 1000) + 60_000
        assert [(found.version, found.expires_ms) for found in run.catalog.leases()] == [(2, lease.expires_ms)]
        clock.advance(30)
        assert client.renew(RUN, "host-1", 2, ttl_s=60).expires_ms == lease.expires_ms + 30_000
        client.release(RUN, "host-1", 2)
        client.release(RUN, "host-1", 2)
        assert run.catalog.leases() == []

    @pytest.mark.parametrize("ttl_s", [0, 10**9])
    def test_they_end_at_the_latest_after_so_long(self, plane, ttl_s):
        plane.run(1)
        clock = ManualClock()
        client = plane.client(plane.serve(clock=clock, limits=Limits(lease_s=100)))
        assert client.acquire(RUN, "a", 1, ttl_s=ttl_s).expires_ms == int(clock.now_s() * 1000) + 100_000

    def test_an_expired_one_is_gone_and_makes_room(self, plane):
        run = plane.run(2)
        clock = ManualClock()
        client = plane.client(plane.serve(clock=clock, limits=Limits(leases=1)))
        client.acquire(RUN, "a", 1, ttl_s=10)
        with pytest.raises(Unavailable, match="1 leases"):
            client.acquire(RUN, "b", 1)
        clock.advance(11)
        with pytest.raises(NotFound, match="acquire it again"):
            client.renew(RUN, "a", 1)
        client.acquire(RUN, "b", 1)
        assert len(run.catalog.leases()) == 1

    def test_a_holder_has_so_many(self, plane):
        plane.run(6)
        client = plane.client(plane.serve(limits=Limits(leases_per_holder=2)))
        for version in (1, 2, 1):
            client.acquire(RUN, "a", version)
        with pytest.raises(Unavailable, match="'a' has 2 leases"):
            client.acquire(RUN, "a", 3)
        client.acquire(RUN, "b", 3)
        client.release(RUN, "a", 1)
        client.acquire(RUN, "a", 3)

    def test_another_server_sees_the_same(self, plane):
        plane.run(3)
        limits = Limits(leases_per_holder=1)
        one, two = (plane.client(plane.serve(limits=limits)) for _ in range(2))
        one.acquire(RUN, "a", 1)
        two.renew(RUN, "a", 1)
        with pytest.raises(Unavailable):
            two.acquire(RUN, "a", 2)

    def test_versions_that_cannot_be_kept(self):
        world = World()
        world.publish(2)
        mark(world, marked=["versions/1"])
        with Plane(world.store) as plane:
            client = plane.client()
            with pytest.raises(Compacted):
                client.acquire(RUN, "a", 1)
            with pytest.raises(NotFound):
                client.acquire(RUN, "a", 9)


def test_two_servers_and_a_wiped_one_give_the_same_answers(plane):
    run = plane.run(6)
    for version in (3, 1, 2):
        run.catalog.move("serving", version, expected_sequence=None, who="op", why="")
    fresh = plane.client()
    old = plane.client(plane.serve(pace=SLOW))
    for client in (old, fresh):
        list(client.list_versions(RUN))

    def answers(client):
        with client.watch(RUN, after_sequence=0) as watch:
            events = [watch.next(20) for _ in range(8)]
        return (
            [client.get_version(RUN, version) for version in range(1, 7)],
            list(client.list_versions(RUN)),
            list(client.list_channels(RUN)),
            list(client.channel_history(RUN, "serving")),
            events,
        )

    assert answers(old) == answers(fresh) == answers(plane.client())


def test_a_page_of_long_moves_stays_below_the_limit(plane):
    run = plane.run(1)
    for _ in range(150):
        run.catalog.move("latest", 1, expected_sequence=None, who="op", why="ü" * 4000)
    client = plane.client()
    assert len(list(client.channel_history(RUN, page_size=1000))) == 152


def test_healthy_while_it_serves(plane):
    assert plane.client().healthy()
    with pytest.raises(Unavailable):
        plane.client("127.0.0.1:1").healthy()


def test_answers_are_small_however_large_the_layout(plane):
    from weightsync.format.dtypes import dtype_named
    from weightsync.format.layout import Tensor, make_layout
    from weightsync.format.refs import Ref
    from weightsync.testing.tiny_run import TinyRun

    layout = make_layout([Tensor(f"layer.{n}.weight", dtype_named("BF16"), (8, 8)) for n in range(50_000)]).to_bytes()
    catalog = plane.catalog()
    plane.store.put(catalog.keys.layout(Ref.of(layout).digest), layout)
    TinyRun(catalog, layout=Ref.of(layout)).publish(1)
    version = plane.client().get_version(RUN, 1)
    assert version.layout.nbytes == len(layout) > 1 << 20
    assert version.ByteSize() < 2000
    assert versions_pb2.GetVersionResponse(version=version).ByteSize() < 2000


def test_denied_by_the_store_is_denied(plane):
    run = plane.run(1)

    def refuse(*_, **__):
        raise Denied("the bucket refuses", remedy="fix its policy")

    plane.store.put = refuse
    with pytest.raises(Denied, match="the bucket refuses"):
        plane.client().acquire(RUN, "a", 1)
    assert run.catalog.leases() == []
