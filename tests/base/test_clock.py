import re

import pytest

from weightsync.clock import SYSTEM, jitter, new_write_id
from weightsync.errors import Invalid
from weightsync.testing.clock import ManualClock


def test_write_ids_are_16_hex_characters_and_differ():
    ids = {new_write_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch("[0-9a-f]{16}", each) for each in ids)


def test_jitter_stays_below_its_bound():
    waits = [jitter(0.5) for _ in range(200)]
    assert all(0 <= wait < 0.5 for wait in waits)
    assert len(set(waits)) > 1


def test_the_monotonic_clock_passes_while_sleeping():
    before = SYSTEM.monotonic_s()
    SYSTEM.sleep_s(0.001)
    assert SYSTEM.monotonic_s() - before >= 0.001


def test_a_sleep_that_is_not_positive_returns():
    SYSTEM.sleep_s(-1)


def test_manual_clock_moves_by_sleeping_and_advancing_only():
    clock = ManualClock(now_s=1000)
    clock.sleep_s(2.5)
    clock.advance(1)
    assert (clock.now_s(), clock.monotonic_s(), clock.sleeps_s) == (1003.5, 3.5, [2.5])


def test_a_jump_of_the_wall_clock_leaves_the_monotonic_one_alone():
    clock = ManualClock(now_s=1000)
    clock.jump(-60)
    assert (clock.now_s(), clock.monotonic_s()) == (940, 0)


def test_time_does_not_run_backwards():
    with pytest.raises(Invalid, match=r"jump\(\)"):
        ManualClock().advance(-1)
