"""What the daemon shows of an engine: phases of its swaps, and no readiness while its weights are in doubt."""

import pytest

from tests.daemon.test_subscribe import Publishing, settings, value
from weightsync.daemon.messages import report_of, subscriber_fact
from weightsync.daemon.process import Process
from weightsync.daemon.subscribe import Follower
from weightsync.engine.session import Swapper
from weightsync.engine.swap import SwapSettings
from weightsync.errors import Unavailable
from weightsync.replica.past import PastLimits
from weightsync.subscriber.engine_output import EngineOutput
from weightsync.telemetry import names
from weightsync.testing.memory_engine import MemoryEngine
from weightsync.v1 import fleet_pb2


@pytest.fixture
def fed(world):
    publishing = Publishing(world)
    publishing.next()
    layout = world.catalog.layout(world.catalog.manifest_of(1).manifest.layout)
    engine = MemoryEngine(layout)
    output = EngineOutput(Swapper({"e": engine}, SwapSettings(pause_limit_s=5.0)))
    return publishing, engine, world.subscriber(outputs=(output,), past=PastLimits(image_share=4.0))


def test_phases_are_metrics_and_reported(fed):
    publishing, _, subscriber = fed

    def stepped(found):
        if found.changed and found.version.version == 3:
            process.bell.end()
        elif found.changed:
            publishing.next()

    with Process("subscriber", metrics=names.SUBSCRIBER) as process:
        follower = Follower(process, subscriber, settings(engine="memory"), on_step=stepped)
        follower.run()
        for phase in ("stage", "pause", "verify", "apply"):
            assert value(process, names.PHASE_S, f'{{phase="{phase}"}}') > 0
        assert value(process, names.PAUSE_S, "_count") == 3
        assert follower.ready().holds
    fact = follower._fact
    assert min(fact.update.stage_s, fact.update.pause_s, fact.update.verify_s) > 0
    back = subscriber_fact(fleet_pb2.Subscriber(name="host", report=report_of(fact)))
    assert back.update.verify_s == pytest.approx(fact.update.verify_s, abs=1e-6)
    assert back.update.pause_s == pytest.approx(fact.update.pause_s, abs=1e-6)


def test_while_an_engine_is_in_doubt_it_is_not_ready(fed):
    publishing, engine, subscriber = fed
    seen = []

    def stepped(found):
        if found.changed and found.version.version == 1:
            engine.faults.arm("write", at=0)
            engine.faults.arm("undo")
            engine.faults.arm("reload", times=2)
            publishing.next()
        elif found.changed:
            process.bell.end()

    def failed(error):
        seen.append((error.kind, follower.ready().holds, subscriber.served))
        with pytest.raises(Unavailable):
            engine.ask()
        before(error)

    with Process("subscriber", metrics=names.SUBSCRIBER) as process:
        follower = Follower(process, subscriber, settings(), on_step=stepped)
        before, follower._failed = follower._failed, failed
        follower.run()
        assert value(process, names.ERRORS, '{kind="dirty"}') >= 1
    assert set(seen) == {("dirty", False, None)}
    assert follower.ready().holds
    assert engine.ask().versions == (2,)
