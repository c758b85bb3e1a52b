"""The commit protocol under random interleavings, lost replies and kills; and proof that the simulation would notice a missing rule.

`python -m tests.catalog.simulate --runs 5000` runs as many seeds as wanted.
"""

import os

import pytest

from tests.catalog.sabotage import RULES
from tests.catalog.simulate import PROFILES, run

FIRST = int(os.environ.get("WEIGHTSYNC_SIMULATION_SEED", "1"))
RUNS = 110  # of each profile
ATTEMPTS = 600  # seeds within which a missing rule must show

SHOWS_IN = {
    "the history decides, not the head": "storm",
    "a lost swap is not repeated over another's": "storm",
    "writers look again after writing": "collection",
}


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_protocol_holds(profile):
    total = {}
    for seed in range(FIRST, FIRST + RUNS):
        try:
            counts = run(seed, profile).counts
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}  (python -m tests.catalog.simulate --runs 1 --seed {seed} --profile {profile})")
        total = {name: total.get(name, 0) + count for name, count in counts.items()}
    # A simulation in which nothing happens proves nothing.
    assert total["acknowledged"] > RUNS
    assert total["fenced_or_beaten"] > RUNS / 10
    assert total["faults"] > RUNS


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_simulation_notices_a_missing_rule(rule):
    for seed in range(FIRST, FIRST + ATTEMPTS):
        try:
            run(seed, SHOWS_IN.get(rule, "mixed"), RULES[rule])
        except AssertionError:
            return
    pytest.fail(f"{ATTEMPTS} runs without the rule that {rule}, and nobody noticed")


def test_the_same_seed_gives_the_same_run():
    for profile in PROFILES:
        assert run(FIRST, profile) == run(FIRST, profile)
        assert run(FIRST, profile).trace != run(FIRST + 1, profile).trace
