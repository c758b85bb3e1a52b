"""Engines that are changed together: all or none, proven, and what becomes of one that fails."""

import threading
from itertools import product

import pytest

from weightsync.engine.api import Mode
from weightsync.engine.changes import Changes
from weightsync.engine.proof import Canary
from weightsync.engine.session import Swapper
from weightsync.engine.swap import SwapSettings
from weightsync.errors import Corrupt, Dirty, Invalid, Unavailable, WeightsyncError
from weightsync.testing.clock import ManualClock
from weightsync.testing.engine_scene import EngineScene
from weightsync.testing.memory_engine import MemoryEngine, fingerprint_of

QUICK = SwapSettings(pause_limit_s=5.0, grace_s=5.0, prove_limit_s=5.0)


class Service:
    """Some engines on one host, at version 1."""

    def __init__(self, home, count=2, settings=QUICK):
        self.scene = EngineScene(home / "image", versions=5)
        self.engines = [MemoryEngine(self.scene.layout, self.scene.weights[0], self.scene.ref(1)) for _ in range(count)]
        self.clock = ManualClock()
        self.swapper = Swapper({f"e{n}": engine for n, engine in enumerate(self.engines)}, settings, clock=self.clock)

    def swap(self, version, canary=None):
        self.scene.go(version)
        with Changes(self.scene.replica) as changes:
            return self.swapper.swap(changes, canary)

    def truth(self, version):
        return fingerprint_of(self.scene.layout, self.scene.weights[version - 1])

    def check(self, *versions):
        """Each engine holds that version whole, says so, and serves it; None: it serves nothing."""
        for engine, version in zip(self.engines, versions, strict=True):
            if version is None:
                with pytest.raises(Unavailable):
                    engine.ask()
                continue
            assert engine.version == self.scene.ref(version)
            reply = engine.ask()
            assert (reply.tokens, reply.versions) == ((self.truth(version),), (version,))
            assert engine.sums() == self.scene.sums(version)

    def close(self):
        self.swapper.close()
        self.scene.close()


@pytest.fixture
def service(tmp_path):
    made = Service(tmp_path)
    yield made
    assert not list(made.scene.replica.path.glob("change-*"))
    made.close()


def test_all_go_to_the_version_and_are_proven(service):
    for version in (2, 3, 5, 1):
        done = service.swap(version)
        assert set(done.engines) == {"e0", "e1"}
        assert (done.unseen, done.reloaded) == ((), ())
        assert all(applied.written == applied.read_back > 0 for applied in done.engines.values())
        service.check(version, version)
        assert service.swapper.version == service.scene.ref(version)
    assert service.swap(1).engines == {}


def test_one_that_was_started_anew_is_loaded_whole(service):
    service.engines[1] = late = MemoryEngine(service.scene.layout)
    service.swapper = Swapper({"e0": service.engines[0], "e1": late}, QUICK)
    assert service.swapper.version is None
    done = service.swap(2)
    assert done.reloaded == ("e1",)
    service.check(2, 2)


@pytest.mark.parametrize("number", [0, 1])
def test_staging_that_fails_touches_nobody(service, number):
    service.engines[number].faults.arm("stage")
    with pytest.raises(Unavailable):
        service.swap(2)
    service.check(1, 1)


@pytest.mark.parametrize(("victim", "tensor"), list(product([0, 1], [0, 1, 2])))
def test_an_exception_at_any_tensor_leaves_all_on_the_old_version(service, victim, tensor):
    service.engines[victim].faults.arm("write", at=tensor)
    with pytest.raises(Unavailable, match="fault"):
        service.swap(2)
    service.check(1, 1)
    assert not service.swapper.dirty
    service.clock.advance(10)
    service.swap(2)
    service.check(2, 2)


def test_one_that_cannot_go_back_is_reloaded(service):
    engine = service.engines[0]
    engine.faults.arm("write", at=1)
    engine.faults.arm("undo")
    done = service.swap(2)
    assert done.reloaded == ("e0",)
    service.check(2, 2)
    assert not service.swapper.dirty


def test_one_that_cannot_be_reloaded_either_serves_nothing_and_the_others_go_back(service):
    engine = service.engines[0]
    engine.faults.arm("write", at=1)
    engine.faults.arm("undo")
    engine.faults.arm("reload", times=2)
    with pytest.raises(Dirty, match="e0"):
        service.swap(2)
    assert set(service.swapper.dirty) == {"e0"}
    assert service.swapper.version is None
    service.check(None, 1)
    service.clock.advance(10)
    service.swap(2)  # by now it can
    service.check(2, 2)
    assert not service.swapper.dirty


def test_success_that_was_only_claimed_is_found_out(service):
    service.engines[1].faults.arm("nothing")
    with pytest.raises(Corrupt, match="not those of version 2"):
        service.swap(2)
    service.check(1, 1)
    suspects = list(service.swapper.suspects)
    assert [(one.engine, one.version) for one in suspects] == [("e1", service.scene.ref(2))]
    service.clock.advance(10)
    assert service.swap(2).reloaded == ("e1",)  # what did not work in place is not tried in place again
    service.check(2, 2)
    assert service.swap(3).reloaded == ()


def test_drift_that_no_change_explains_is_found_out_and_healed(service):
    service.engines[0].faults.arm("drift")
    with pytest.raises(Corrupt):
        service.swap(2)
    service.check(1, 1)


def test_drift_is_found_out_before_anything_is_served(tmp_path):
    settings = SwapSettings(pause_limit_s=5.0, prove_before_resume=True)
    service = Service(tmp_path, settings=settings)
    service.engines[0].faults.arm("drift")
    with pytest.raises(WeightsyncError):
        service.swap(2)
    service.check(1, 1)  # the bit that moved was not among those that were put back
    assert [(one.engine, one.version) for one in service.swapper.suspects] == [("e0", service.scene.ref(1))]  # never the new one
    service.clock.advance(10)
    service.swap(2)
    service.check(2, 2)
    service.close()


def test_one_that_was_claimed_to_serve_nothing_is_loaded_or_serves_nothing(tmp_path):
    service = Service(tmp_path, count=1)
    service.engines[0] = engine = MemoryEngine(service.scene.layout)
    service.swapper = Swapper({"e0": engine}, QUICK, clock=service.clock)
    engine.faults.arm("reload")
    with pytest.raises(Dirty):
        service.swap(2)
    service.check(None)
    service.clock.advance(10)
    service.swap(2)
    service.check(2)
    service.close()


def test_a_pause_that_hangs_ends_by_its_limit(tmp_path):
    service = Service(tmp_path, settings=SwapSettings(pause_limit_s=0.1))
    service.engines[1].faults.arm("hang")
    with pytest.raises(Unavailable):
        service.swap(2)
    service.check(1, 1)
    service.close()


class Stuck(MemoryEngine):
    """Its adapter never comes back from a call."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.let_go = threading.Event()

    def sums(self):
        self.let_go.wait()
        return super().sums()


def test_an_adapter_that_never_comes_back_is_withdrawn_and_waited_for_no_longer(tmp_path):
    service = Service(tmp_path, settings=SwapSettings(prove_limit_s=0.1, grace_s=0.5))
    scene = service.scene
    stuck = Stuck(scene.layout, scene.weights[0], scene.ref(1))
    service.engines[0] = stuck
    service.swapper = Swapper({"e0": stuck, "e1": service.engines[1]}, service.swapper.settings, clock=service.clock)
    with pytest.raises(Dirty, match="e0"):
        service.swap(2)
    service.check(None, 1)
    with pytest.raises(Dirty):
        service.swap(3)
    stuck.let_go.set()
    service.close()


def test_a_version_that_failed_is_not_tried_at_every_look(service):
    tries = []
    engine = service.engines[0]
    engine.faults.arm("stage", times=100)
    for _ in range(100):
        service.clock.advance(1)
        with pytest.raises(Unavailable):
            service.swap(2)
        tries.append(len(engine.faults.hit))
    assert tries[-1] < 10
    service.swap(3) if not engine.faults.armed.clear() else None  # another version is tried at once
    service.check(3, 3)


def test_a_requested_prompt_never_sees_another_versions_cache(service):
    for version in (1, 2, 3, 2):
        service.swap(version)
        assert service.engines[0].ask("shared prefix").tokens == (service.truth(version),)


@pytest.mark.parametrize("mode", list(Mode))
def test_requests_in_flight_see_whole_versions_with_right_labels(tmp_path, mode):
    service = Service(tmp_path, settings=SwapSettings(mode=mode, pause_limit_s=5.0))
    truths = {version: service.truth(version) for version in range(1, 6)}
    over, wrong, seen, ended = threading.Event(), [], set(), []

    def ask(engine):
        while not over.is_set():
            try:
                reply = engine.ask(tokens=4)
            except Unavailable:
                ended.append(1)
                continue
            seen.update(reply.versions)
            wrong.extend(pair for pair in zip(reply.tokens, reply.versions, strict=True) if truths[pair[1]] != pair[0])
            if mode is not Mode.KEEP and len(set(reply.versions)) > 1:
                wrong.append(reply)

    threads = [threading.Thread(target=ask, args=(engine,)) for engine in service.engines for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for round_ in range(8):
            service.swap(2 + round_ % 4)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert seen
    assert not ended or mode is Mode.ABORT
    service.close()


class Speaker(MemoryEngine):
    """Says for each token how it stands to its live weights."""

    def logprobs(self, tokens):
        return [-float(token % 7) - (self.live["model.scale"][0] & 1) for token in tokens[1:]]


def test_a_canary_that_says_something_else_is_a_failed_swap(tmp_path):
    service = Service(tmp_path, count=1)
    scene = service.scene
    service.engines[0] = engine = Speaker(scene.layout, scene.weights[0], scene.ref(1))
    service.swapper = Swapper({"e0": engine}, QUICK, clock=service.clock)
    scene.go(2)
    right = [-float(token % 7) - (int(scene.weights[1]["model.scale"][0]) & 1) for token in (5, 9)]
    canary = Canary((3, 5, 9), tuple(right), 1e-6)
    service.swap(2, canary)
    service.check(2)
    with pytest.raises(Corrupt, match="canary"):
        service.swap(3, Canary((3, 5, 9), (right[0] - 2.0, right[1]), 0.5))
    service.check(2)
    service.close()


UNREADABLE = (
    "",
    "[]",
    "{}",
    "[" * 9000,
    '{"tokens":[1,2],"logprobs":[],"tolerance":1}',
    '{"tokens":[1,-2],"logprobs":[0],"tolerance":1}',
    '{"tokens":[1,2],"logprobs":[NaN],"tolerance":1}',
    '{"tokens":[1,2],"logprobs":[0],"tolerance":-1}',
    '{"tokens":[1],"logprobs":[],"tolerance":1}',
)


@pytest.mark.parametrize("text", UNREADABLE)
def test_a_canary_that_cannot_be_read_is_refused(text):
    with pytest.raises(Invalid):
        Canary.parse(text.encode())
    assert Canary.parse(b'{"tokens":[1,2],"logprobs":[-0.5],"tolerance":0.1}') == Canary((1, 2), (-0.5,), 0.1)
