"""Whatever fails in whatever order: an engine serves one version whole under its right name, or nothing, and all heal in the end."""

import numpy as np
import pytest

from tests.engine.test_session import Service
from weightsync.engine.swap import SwapSettings
from weightsync.errors import Unavailable, WeightsyncError
from weightsync.testing.memory_engine import NAMES

FAULTS = sorted(NAMES)
SWAPS = 12


def arm(engine, random):
    """Up to three things that will go wrong, some of them more than once."""
    for name in random.choice(FAULTS, random.integers(0, 4), replace=False):
        engine.faults.arm(str(name), at=int(random.integers(0, 3)) if name == "write" else 0, times=int(random.integers(1, 3)))


def check(service):
    """Nobody serves a mix, or a version under another's name."""
    for number, engine in enumerate(service.engines):
        try:
            reply = engine.ask()
        except Unavailable:
            continue
        assert reply.tokens == (service.truth(reply.versions[0]),), f"engine {number} serves a mix as version {reply.versions[0]}"


@pytest.mark.parametrize("seed", [*range(8), 101, 103, 107])
def test_no_order_of_faults_makes_a_mix_that_is_served(tmp_path, seed):
    random = np.random.default_rng(seed)
    settings = SwapSettings(pause_limit_s=0.02, prove_before_resume=bool(seed % 2), prove_limit_s=5.0, grace_s=5.0)
    service = Service(tmp_path, count=1 + seed % 3, settings=settings)
    outcomes = set()
    for _ in range(SWAPS):
        for engine in service.engines:
            arm(engine, random)
        version = int(random.integers(1, 6))
        try:
            service.swap(version)
            outcomes.add("swapped")
            service.check(*[version] * len(service.engines))
        except WeightsyncError as error:
            outcomes.add(error.kind)
        check(service)
        for engine in service.engines:
            engine.faults.armed.clear()
        service.clock.advance(1000)
    assert len(outcomes) > 1
    service.swap(3)
    service.check(*[3] * len(service.engines))
    assert not service.swapper.dirty
    service.close()
