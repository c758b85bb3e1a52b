"""A sample of `python -m tests.e2e.corrupt --all`, which damages a small store in every single way; its result is kept beside this file."""

import json

import pytest

from tests.e2e.corrupt import RESULT, Campaign


@pytest.fixture(scope="module")
def tally(tmp_path_factory):
    return Campaign(tmp_path_factory.mktemp("corruption"), stride=397).run()


def test_no_damage_is_accepted_and_nothing_that_is_served_changes(tally):
    assert tally.accepted == []


@pytest.mark.parametrize(
    ("way", "least"),
    [("flips", 600), ("flips (verify)", 450), ("cuts", 80), ("grown", 100), ("gone", 30), ("swaps", 300), ("behind (shards)", 150)],
)
def test_every_way_was_really_tried(tally, way, least):
    assert tally.tried[way] >= least


def test_the_kept_result_is_of_a_whole_campaign_and_clean():
    kept = json.loads(RESULT.read_text())
    assert kept["every_bit"]
    assert kept["accepted"] == 0
    assert kept["store_bytes"] >= 32 << 10
    assert kept["tried"]["flips"] >= 260_000
    assert kept["tried"]["cuts"] >= 32_000
