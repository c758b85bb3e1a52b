"""A subscriber that feeds engines: from the store into what they serve."""

import json

import numpy as np
import pytest

from tests.publisher.checkpoints import make, step
from weightsync.daemon.subscribe import readiness
from weightsync.engine.directory import DirectoryEngine
from weightsync.engine.proof import CANARY_FILE
from weightsync.engine.session import Swapper
from weightsync.engine.swap import SwapSettings
from weightsync.errors import Corrupt, Dirty, Invalid, NotFound, Unavailable, Unsupported
from weightsync.replica.past import PastLimits
from weightsync.subscriber.engine_output import EngineOutput
from weightsync.testing.clock import ManualClock
from weightsync.testing.memory_engine import MemoryEngine

PAST = PastLimits(image_share=4.0)


class Scene:
    """A publisher of versions, and a subscriber that feeds `engines`."""

    def __init__(self, world, count=2, kind=MemoryEngine):
        self.world, self.publisher, self.weights, self.count = world, world.publisher(past=PAST), make(), 0
        self.clock = ManualClock()
        self.publish()
        layout = world.catalog.layout(world.catalog.manifest_of(1).manifest.layout)
        self.engines = [kind(layout) for _ in range(count)]
        self.start()

    def start(self):
        swapper = Swapper({f"e{n}": one for n, one in enumerate(self.engines)}, SwapSettings(pause_limit_s=5.0), clock=self.clock)
        self.output = EngineOutput(swapper)
        self.subscriber = self.world.subscriber(f"host{self.count}", outputs=(self.output,), past=PAST)

    def publish(self, share=0.02, **options):
        self.count += 1
        path = self.world.checkpoint(self.weights)
        for name, data in options.items():
            (path / {"canary": CANARY_FILE}[name]).write_bytes(data)
        self.publisher.publish_checkpoint(path)
        self.weights = step(self.weights, self.count, share)

    def check(self, version):
        record = self.world.catalog.manifest_of(version)
        layout = self.world.catalog.layout(record.manifest.layout)
        sums = self.world.catalog.digests(record.manifest, layout).sums
        for engine in self.engines:
            assert engine.version == record.ref
            assert [engine.sums()[tensor.name] for tensor in layout.tensors] == list(map(int, sums))
            assert engine.ask().versions == (version,)

    @property
    def ready(self):
        return readiness(self.subscriber.demand, self.subscriber.served)


@pytest.fixture
def scene(world):
    return Scene(world)


def test_versions_go_from_the_store_into_the_engines(scene):
    first = scene.subscriber.step()
    assert set(first.phases) == {"stage", "pause", "verify"}
    scene.check(1)
    assert scene.output.last.reloaded == ("e0", "e1")  # nothing was known of what they had
    for version in (2, 3):
        scene.publish()
        step = scene.subscriber.step()
        assert step.delivered == 1
        assert scene.output.last.reloaded == ()
        changed = scene.output.last.engines["e0"].written
        assert 0 < changed < sum(map(len, scene.engines[0].live.values()))
        scene.check(version)
    assert scene.ready.holds
    assert not scene.subscriber.step().changed
    assert not list(scene.subscriber._replica.path.glob("change-*"))


def test_an_engine_that_was_started_anew_is_fed_again(scene):
    scene.subscriber.step()
    scene.engines[0] = MemoryEngine(scene.engines[0].layout)
    scene.output._swapper._seats[0].engine = scene.engines[0]
    assert scene.subscriber.step().delivered == 1
    scene.check(1)


def test_what_an_engine_serves_that_does_not_answer_is_not_known(scene, monkeypatch):
    scene.subscriber.step()
    assert scene.ready.holds

    def away(engine):
        raise Unavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryEngine, "version", property(away))
        with pytest.raises(Unavailable):
            scene.subscriber.step()
        assert not scene.ready.holds
    scene.subscriber.step()
    assert scene.ready.holds


def test_a_rollback_goes_the_same_way(scene):
    for _ in range(2):
        scene.publish()
    scene.subscriber.step()
    scene.check(3)
    scene.world.catalog.move("serving", 1, expected_sequence=None, who="op", why="")
    other = scene.world.subscriber("other", channel="serving", outputs=(EngineOutput(Swapper({"e": scene.engines[0]})),), past=PAST)
    other.step()
    scene.engines = scene.engines[:1]
    scene.check(1)


def test_the_same_weights_published_again_are_served_under_their_number(scene):
    scene.subscriber.step()
    scene.weights = make()
    scene.publish()
    scene.subscriber.step()
    assert {one.written for one in scene.output.last.engines.values()} == {0}
    scene.check(2)


def test_a_swap_that_fails_leaves_the_old_version_and_no_readiness(scene):
    scene.subscriber.step()
    scene.publish()
    scene.engines[1].faults.arm("nothing")
    with pytest.raises(Corrupt):
        scene.subscriber.step()
    scene.check(1)
    assert [(one.engine, one.version.version) for one in scene.output.suspects] == [("e1", 2)]
    assert not scene.ready.holds
    scene.clock.advance(10)
    scene.subscriber.step()
    scene.check(2)
    assert scene.ready.holds


def test_a_dirty_engine_is_never_ready_even_if_the_old_version_is_demanded_again(scene):
    scene.subscriber.step()
    scene.publish()
    engine = scene.engines[0]
    engine.faults.arm("write", at=1)
    engine.faults.arm("undo")
    engine.faults.arm("reload", times=9)
    with pytest.raises(Dirty):
        scene.subscriber.step()
    assert scene.output.dirty
    assert scene.subscriber.served is None
    assert not readiness(scene.subscriber.demand, scene.subscriber.served).holds
    with pytest.raises(Unavailable):
        engine.ask()
    engine.faults.armed.clear()
    scene.clock.advance(10)
    scene.subscriber.step()
    scene.check(2)
    assert scene.ready.holds


def test_a_subscriber_that_is_started_again_finds_its_engines_as_they_are(scene):
    scene.subscriber.step()
    left = scene.subscriber._replica.path / f"change-{'0' * 16}"
    scene.subscriber.close()
    left.write_bytes(b"left by a killed process")
    scene.publish()
    scene.count = 1
    scene.world._made.remove(scene.subscriber)
    swapper = Swapper({"e0": scene.engines[0], "e1": scene.engines[1]}, clock=scene.clock)
    scene.output = EngineOutput(swapper)
    scene.subscriber = scene.world.subscriber("host1", outputs=(scene.output,), past=PAST)
    assert scene.subscriber.served.version == 1
    scene.subscriber.step()
    scene.check(2)
    assert scene.output.last.reloaded == ()
    assert not left.exists()


class Speaker(MemoryEngine):
    def logprobs(self, tokens):
        return [-1.0 - np.float64(self.live["scalar"].view("<f4")[0]) for _ in tokens[1:]]


@pytest.mark.parametrize("right", [True, False])
def test_a_canary_among_the_files_of_a_version_is_asked(world, right):
    scene = Scene(world, count=1, kind=Speaker)
    scene.subscriber.step()
    scalar = float(np.frombuffer(scene.weights["scalar"][2], "<f4")[0])
    said = -1.0 - scalar if right else -9.0
    scene.publish(canary=json.dumps({"tokens": [1, 2], "logprobs": [said], "tolerance": 1e-3}).encode())
    if right:
        scene.subscriber.step()
        scene.check(2)
    else:
        with pytest.raises(Corrupt, match="canary"):
            scene.subscriber.step()
        scene.check(1)


def test_a_directory_is_an_engine_too(world, tmp_path):
    scene = Scene(world, count=1)
    engine = DirectoryEngine(world.home / "out")
    output = EngineOutput(Swapper({"dir": engine}))
    subscriber = world.subscriber("dir", outputs=(output,), past=PAST)
    for version in (1, 2):
        subscriber.step()
        assert (world.home / "out" / "current").readlink().name == str(version)
        record = world.catalog.manifest_of(version)
        layout = world.catalog.layout(record.manifest.layout)
        sums = world.catalog.digests(record.manifest, layout).sums
        assert engine.sums() == {tensor.name: int(sums[n]) for n, tensor in enumerate(layout.tensors)}
        scene.publish()


def test_urls_that_mean_no_engine_are_refused():
    from weightsync.engine.open import kind_of, open_engine

    for url in ("", "vllm", "http://x", "vllm+ftp://x", "dir://", "file:///x", "+http://x"):
        with pytest.raises(Invalid):
            kind_of(url)
    assert [kind_of(url) for url in ("dir://x", "vllm+http://h:1", "sglang+https://h")] == ["directory", "vllm", "sglang"]
    with pytest.raises(NotFound):
        open_engine("memory://nobody")


@pytest.mark.parametrize(
    ("missing", "said"), [("weightsync.engine.sglang", "no adapter for sglang"), ("requests", r"requests is missing.*\[torch\]")]
)
def test_an_adapter_that_cannot_be_imported_is_named(monkeypatch, missing, said):
    from weightsync.engine import open as module

    def absent(name):
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(module.importlib, "import_module", absent)
    with pytest.raises(Unsupported, match=said):
        module.open_engine("sglang+http://127.0.0.1:1")
