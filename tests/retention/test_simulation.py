"""Collection under random interleavings, lost replies, stops and kills; and proof that the simulation would notice a missing rule.

`python -m tests.retention.simulate --runs 5000` runs as many seeds as wanted.
"""

import logging
import os

import pytest

from tests.retention.sabotage import RULES
from tests.retention.simulate import run

FIRST = int(os.environ.get("WEIGHTSYNC_SIMULATION_SEED", "1"))
RUNS = 120
ATTEMPTS = 700  # seeds within which a missing rule must show

# Where each rule was first seen to be missed: the search begins there, so that it is short while nothing changes.
SHOWS_AT = {
    "needs are read again before condemning": 32,
    "marks come before condemning": 105,
    "a boundary is never overwritten": 177,
    "only fenced publishers leave leftovers": 38,
    "pins count": 13,
    "leases count": 24,
    "who moves looks again": 19,
}


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_collection_is_safe():
    total = {}
    for seed in range(FIRST, FIRST + RUNS):
        try:
            counts, _ = run(seed)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}  (python -m tests.retention.simulate --runs 1 --seed {seed})")
        total = {name: total.get(name, 0) + counts[name] for name in {*total, *counts}}
    # A simulation in which nothing happens proves nothing.
    for what, least in {"collections": 2, "condemned": 1, "deleted": 3, "held": 2, "leftovers": 1, "reads": 2}.items():
        assert total[what] > least * RUNS / 2, (what, total)
    assert min(total[what] for what in ("killed", "pins", "leases", "refused")) > 5, total


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_simulation_notices_a_missing_rule(rule):
    first = SHOWS_AT.get(rule, 1)
    for seed in range(first, first + ATTEMPTS):
        try:
            run(seed, RULES[rule])
        except AssertionError:
            return
    pytest.fail(f"{ATTEMPTS} runs without the rule that {rule}, and nobody noticed")


def test_the_same_seed_gives_the_same_run():
    assert run(FIRST) == run(FIRST)
    assert run(FIRST)[1] != run(FIRST + 1)[1]
