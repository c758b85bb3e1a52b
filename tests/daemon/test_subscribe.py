"""A subscriber's main loop over a memory store; the loop itself ends the test when it has seen enough."""

import threading

import pytest

from tests.daemon.planes import Plane
from tests.publisher.checkpoints import make, step
from weightsync.daemon.hints import Sight
from weightsync.daemon.process import Process
from weightsync.daemon.subscribe import Follower, FollowSettings, _Looks, readiness
from weightsync.format.refs import VersionRef
from weightsync.store.memory_faults import Faults
from weightsync.subscriber.follow import Demand
from weightsync.telemetry import names

ONE, TWO = VersionRef(1, "aa" * 32), VersionRef(2, "bb" * 32)


@pytest.mark.parametrize(
    ("demand", "served", "ready", "reason"),
    [
        (None, None, False, "not been looked at"),
        (None, ONE, False, "not been looked at"),
        (Demand(0, None, 0), None, False, "no version yet"),
        (Demand(1, ONE, 0), None, False, "nothing is served yet"),
        (Demand(1, ONE, 0), ONE, True, "version 1 is served"),
        (Demand(2, TWO, 0), ONE, False, "version 1 is served; the channel demands version 2"),
        (Demand(3, ONE, 0), TWO, False, "version 2 is served; the channel demands version 1"),  # rolled back
        (Demand(3, VersionRef(1, "cc" * 32), 0), ONE, False, "demands version 1"),  # another run's history under the same number
    ],
)
def test_readiness(demand, served, ready, reason):
    found = readiness(demand, served)
    assert found.holds is ready
    assert reason in found.reason


class Publishing:
    """A publisher that goes on with the weights that it had."""

    def __init__(self, world):
        self.world, self.publisher, self.weights = world, world.publisher(), make(size=500)

    def next(self):
        done = self.publisher.publish_checkpoint(self.world.checkpoint(self.weights, shards=1)).version
        self.weights = step(self.weights, done)
        return done


def settings(**changes):
    return FollowSettings("run", "latest", "host", "eu", interval_s=changes.pop("interval_s", 0.02), spread_s=0.01, **changes)


def value(process, metric, labels=""):
    lines = process.page().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{metric.sample}{labels} ")).split()[-1])


@pytest.mark.parametrize("away", ["absent", "refuses", "hangs"])
def test_it_converges_without_a_control_plane_from_start_to_end(world, away):
    publishing, plane = Publishing(world), None
    if away != "absent":
        plane = Plane()
        (plane.down if away == "refuses" else plane.hang).set()
    versions = []

    def stepped(found):
        if found.changed:
            versions.append(found.version.version)
            if versions[-1] == 3:
                process.bell.end()
            else:
                publishing.next()

    publishing.next()
    with Process("subscriber", metrics=names.SUBSCRIBER) as process:
        Follower(process, world.subscriber(), settings(), plane=plane, on_step=stepped).run()
        assert value(process, names.SERVED) == 3
        assert value(process, names.UPDATES) == 3
        assert value(process, names.WATCHING) == 0
        assert value(process, names.FETCHED) > 1000
    assert versions == [1, 2, 3]
    assert plane is None or plane.closed.is_set()  # it does not wait for who does not answer


def test_what_is_in_flight_is_known_from_the_first_byte_to_the_end(world):
    publishing, seen, subscriber = Publishing(world), [], world.subscriber()
    publishing.next()

    def stepped(_):
        seen.append(process.in_flight)
        process.bell.end()

    with Process("subscriber", metrics=names.SUBSCRIBER) as process:
        follower = Follower(process, subscriber, settings(), on_step=stepped)
        told = subscriber.progress

        def progress(done, total):
            told(done, total)
            seen.append(process.in_flight)

        subscriber.progress = progress
        follower.run()
    assert (set(seen[:-1]), seen[-1]) == ({"version 1"}, "")


def test_news_is_looked_at_at_once_and_old_news_is_not(world):
    publishing, plane, looks = Publishing(world), Plane(), []

    def stepped(found):
        looks.append(found.sequence)
        if found.version.version == 3:
            process.bell.end()
            return
        plane.sights.put(Sight(found.sequence, connected=True))  # what it has just seen: no reason to look again
        publishing.next()
        plane.sights.put(Sight(found.sequence + 1, connected=True))

    publishing.next()
    with Process("subscriber", metrics=names.SUBSCRIBER) as process:
        Follower(process, world.subscriber(), settings(interval_s=3600.0), plane=plane, on_step=stepped).run()
        assert value(process, names.REPORTS, '{outcome="sent"}') >= 1
    assert looks == [2, 3, 4]


def test_what_goes_wrong_is_reported_counted_and_outlived(world):
    publishing, plane = Publishing(world), Plane()
    subscriber, reports = world.subscriber(), []

    def listen():
        while True:
            call = plane.calls.get()
            if call[0] == "report":
                reports.append(call[2])
                if call[2].served == 2:
                    process.bell.end()
                    return
                if call[2].stage == "failed":
                    world.store.set_faults(Faults())

    def stepped(found):
        if found.changed and found.version.version == 1:
            assert follower.ready().holds
            publishing.next()
            world.store.set_faults(Faults(1, unavailable=1.0))

    publishing.next()
    listener = threading.Thread(target=listen)
    with Process("subscriber", metrics=names.SUBSCRIBER) as process:
        follower = Follower(process, subscriber, settings(), plane=plane, on_step=stepped)
        listener.start()
        follower.run()
        assert value(process, names.ERRORS, '{kind="unavailable"}') >= 1
        assert value(process, names.ALARM, '{alarm="failing"}') == 0
    listener.join()
    failed = next(report for report in reports if report.stage == "failed")
    assert (failed.served, failed.error_kind) == (1, "unavailable")
    assert (reports[-1].stage, reports[-1].error_kind, reports[-1].region) == ("idle", "", "eu")
    assert reports[-1].update.version == 2


def test_a_fixed_version_stays_whatever_is_published(world):
    publishing = Publishing(world)
    for _ in range(3):
        publishing.next()
    subscriber = world.subscriber("fixed", fixed=2)
    found = subscriber.step()
    assert (found.version.version, found.sequence, subscriber.demand.version.version) == (2, 0, 2)
    publishing.next()
    assert not subscriber.step().changed
    assert subscriber.served.version == 2


def test_lag_is_counted_from_the_move_that_was_missed(world):
    publishing = Publishing(world)
    publishing.next()
    with Process("subscriber", metrics=names.SUBSCRIBER) as process:
        subscriber = world.subscriber()
        follower = Follower(process, subscriber, settings())
        assert value(process, names.LAG_S) == 0
        subscriber.step()
        subscriber.demand = Demand(9, TWO, 0)  # moved in 1970
        follower._say()
        assert value(process, names.LAG_VERSIONS) == 1
        assert 0 < value(process, names.LAG_S) < 60  # it has not existed for longer
        assert value(process, names.DEMANDED) == 2
        assert not process.ready().holds


class _Waits:
    """A process whose bell rings at once and which keeps for how long it was waited."""

    def __init__(self):
        self.bell, self.waits = self, []

    def beat(self):
        pass

    def is_set(self):
        return False

    def wait(self, timeout):
        self.waits.append(timeout)
        return len(self.waits) % 2 == 1  # news ends the first wait, nothing the second one


def test_a_thousand_that_hear_the_same_news_do_not_look_at_the_same_time():
    process = _Waits()
    for _ in range(1000):
        assert _Looks(process, 10.0).wait(60.0)
    delays = process.waits[1::2]
    assert len(delays) == 1000
    per_second = [sum(second <= delay < second + 1 for delay in delays) for second in range(10)]
    assert sum(per_second) == 1000
    assert max(per_second) <= 3 * 100


def test_a_thousand_that_poll_spread_over_the_interval(world):
    waits = []

    class Stop:
        def is_set(self):
            return len(waits) == 1000

        def wait(self, timeout):
            waits.append(timeout)
            return False

    Publishing(world).next()
    world.subscriber().run(Stop(), interval_s=2.0)
    assert all(1.0 <= wait <= 3.0 for wait in waits)
    assert 1.8 < sum(waits) / 1000 < 2.2
    assert len({round(wait, 3) for wait in waits}) > 300


def test_a_store_that_is_away_is_asked_hardly_less_often_than_before(world):
    waits = []

    class Stop:
        def is_set(self):
            return len(waits) == 8

        def wait(self, timeout):
            waits.append(timeout)
            return False

    world.store.set_faults(Faults(1, unavailable=1.0))
    world.subscriber().run(Stop(), interval_s=0.5)
    world.store.set_faults(Faults())
    assert max(waits) <= 4.5  # when the store is back nobody sleeps on for long


def test_what_was_seen_is_no_news(world):
    Publishing(world).next()
    with Process("subscriber", metrics=names.SUBSCRIBER) as process:
        follower = Follower(process, world.subscriber(), settings())
        follower._went(world.subscriber("other").step())
        follower._hinted(2)  # the claim and the first version: what the step has seen
        assert not process.bell.wait(0)
        follower._hinted(3)
        assert process.bell.wait(60)
