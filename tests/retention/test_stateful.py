"""The stateful machine and the planted faults, a small part of each; `python -m tests.retention.stateful` and `.faults` run the rest."""

import logging
from unittest.mock import patch

import pytest

from tests.retention import faults, stateful
from tests.retention.sabotage import RULES
from weightsync.retention import plan


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def test_anything_in_any_order():
    counts = stateful.run(25, 30, derandomize=True)
    assert counts["steps"] > 400
    assert min(counts.get(what, 0) for what in ("published", "collections", "condemned", "deleted", "killed", "copies", "caught_up")) > 0, (
        counts
    )


def test_the_machine_notices_what_is_not_held():
    target, name, replacement = RULES["what chains need is held"].replaced
    assert target is plan
    with patch.object(target, name, replacement), pytest.raises(AssertionError, match="dangles"):
        stateful.run(60, 30, derandomize=True, shrink=False)


def test_planted_faults_are_found_and_named(tmp_path):
    for fault in faults.campaign(tmp_path, 15, seed=7):
        assert fault.found, (fault.kind, fault.key)
        assert fault.named, (fault.kind, fault.key, fault.report)
