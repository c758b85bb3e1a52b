"""The control plane's main loop with a server that only says who its subscribers are, and what is read from a store."""

import pytest

from tests.daemon.test_subscribe import Publishing, value
from weightsync.daemon.messages import report_of, subscriber_fact
from weightsync.daemon.observe import StoreObserver
from weightsync.daemon.process import Process
from weightsync.daemon.serve import ServingLoop
from weightsync.errors import NotFound
from weightsync.store.memory_faults import Faults
from weightsync.telemetry import names
from weightsync.telemetry.alarms import Thresholds
from weightsync.telemetry.facts import SubscriberFact, UpdateFact
from weightsync.v1 import fleet_pb2


class Server:
    def __init__(self, process, rounds, fleet=(), on_round=None):
        self.process, self.rounds, self.fleet, self.on_round, self.stopped = process, rounds, list(fleet), on_round, False

    async def start(self):
        return "127.0.0.1:1"

    async def stop(self):
        self.stopped = True

    def fleets(self):
        """Asked at each look; after some of them it is enough."""
        if self.on_round is not None:
            self.on_round(self.rounds)
        self.rounds -= 1
        if self.rounds == 0:
            self.process.bell.end()
        return {"run": self.fleet} if self.fleet else {}


def subscriber(name, served, **report):
    return fleet_pb2.Subscriber(
        name=name, region="eu", channel="latest", report=fleet_pb2.SubscriberReport(served_version=served, held_version=served, **report)
    )


def serve(process, world, server, **options):
    loop = ServingLoop(
        process, lambda: server, lambda run: world.open_catalog(), observe_s=0.02, limits=Thresholds(behind_versions=1), **options
    )
    loop.run()
    return loop


def test_runs_and_fleets_become_metrics(world):
    publishing = Publishing(world)
    for _ in range(3):
        publishing.next()
    world.catalog.move("serving", 2, expected_sequence=None, who="me", why="")
    with Process("server", metrics=names.SERVER) as process:
        server = Server(process, 2, [subscriber("a", 3, fetched_bytes=7), subscriber("b", 1, error_kind="corrupt")])
        addresses = []
        loop = serve(process, world, server, on_listening=addresses.append)
        labels = '{channel="latest",region="eu",run="run"}'
        assert value(process, names.FLEET, labels) == 2
        assert value(process, names.FLEET_BELOW, labels) == 1
        assert value(process, names.FLEET_FAILED, labels) == 1
        assert value(process, names.FLEET_LAG_VERSIONS, labels) == 2
        assert value(process, names.FLEET_BYTES, labels) == 7
        assert value(process, names.CHANNEL_VERSION, '{channel="serving",run="run"}') == 2
        assert value(process, names.NEWEST, '{run="run"}') == 3
        assert value(process, names.RUN_ALARM, '{alarm="behind_versions",run="run"}') == 1
        assert value(process, names.RUN_ALARM, '{alarm="failing",run="run"}') == 1
        assert value(process, names.RUN_ALARM, '{alarm="unchanged",run="run"}') == 0
        assert not loop.ready().holds  # it has ended
    assert (server.stopped, addresses) == (True, ["127.0.0.1:1"])


def test_a_store_that_is_away_ends_nothing_and_what_was_seen_stays(world):
    Publishing(world).next()

    def disturb(left):
        if left == 3:
            world.store.set_faults(Faults(1, unavailable=1.0))

    with Process("server", metrics=names.SERVER) as process:
        serve(process, world, Server(process, 4, on_round=disturb), runs=["run"])
        assert value(process, names.ERRORS, '{kind="unavailable"}') >= 1
        assert value(process, names.NEWEST, '{run="run"}') == 1
    world.store.set_faults(Faults())


def test_a_run_that_nobody_has_started_is_no_error(world):
    with Process("server", metrics=names.SERVER) as process:
        serve(process, world, Server(process, 2), runs=["run"])
        assert 'run="run"' not in process.page().decode()


def test_a_store_is_observed(world):
    publishing = Publishing(world)
    with pytest.raises(NotFound):
        StoreObserver(world.open_catalog()).look()
    for _ in range(4):
        publishing.next()
    observer = StoreObserver(world.open_catalog(), versions=3)
    facts = observer.look()
    assert [version.version for version in facts.versions] == [2, 3, 4]
    assert [version.snapshot for version in facts.versions] == [False] * 3
    assert all(0 < version.changed_lanes < version.lanes for version in facts.versions)
    assert facts.subscribers is None
    publishing.next()
    before = len(world.store.log)
    assert [version.version for version in observer.look().versions] == [3, 4, 5]
    read = [operation.key for operation in world.store.log[before:] if operation.key and "/manifest" in operation.key]
    assert len(read) == 1, "what is known is read again"


def test_reports_survive_the_wire():
    fact = SubscriberFact(
        "host",
        "eu",
        "vllm",
        "canary",
        held=8,
        served=7,
        sequence=9,
        stage="apply",
        fetched_bytes=10**12,
        update=UpdateFact(7, 5, 1.5, 0.25, 0.5, 0.125, 0.001),
        error_kind="corrupt",
        error="bad",
        registered_s=12.5,
        seen_s=13.25,
    )
    message = fleet_pb2.Subscriber(
        name="host", region="eu", engine="vllm", channel="canary", report=report_of(fact), registered_ms=12500, seen_ms=13250
    )
    assert subscriber_fact(fleet_pb2.Subscriber.FromString(message.SerializeToString())) == fact


def test_a_long_error_is_cut():
    assert len(report_of(SubscriberFact("h", "", "", "latest", error="x" * 2000)).error) == 512
