"""Advantages and mismatch: what a group teaches, and how far policies stand apart."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("torch")

from tests.rl.made import graded, group, segment
from weightsync.rl.advantages import grpo, spread
from weightsync.rl.batch import batches, padded, rows_of
from weightsync.rl.mismatch import by_origin, mismatch
from weightsync.rl.records import Group, Outcome


def test_an_episode_is_credited_beside_its_group_on_all_drawn_tokens() -> None:
    found = grpo(group(0, [1, 0, 0, 1]))
    assert found is not None
    assert_array_equal(found[0][0] != 0, segment(seed=0).made)
    assert_allclose([parts[0][-1] for parts in found], np.array([1, -1, -1, 1]) * 0.5 / (np.std([1, 0, 0, 1], ddof=1) + 1e-4), rtol=1e-6)


@pytest.mark.parametrize("rewards", [[1, 1, 1], [0, 0], [0.5]])
def test_groups_that_are_all_alike_teach_nothing(rewards: list[float]) -> None:
    assert grpo(group(0, rewards)) is None


@pytest.mark.parametrize("outcome", [Outcome.INFRA_ERROR, Outcome.MASKED])
def test_what_was_not_graded_moves_nothing(outcome: Outcome) -> None:
    plain = group(0, [1, 0, 0])
    with_failure = Group(plain.task, (*plain.episodes, graded(0.0, segment(seed=9), sample=3, outcome=outcome)), "worker", "home")
    found, alone = grpo(with_failure), grpo(plain)
    assert found is not None
    assert alone is not None
    assert not found[3][0].any()
    for one, other in zip(found, alone, strict=False):
        assert_array_equal(one[0], other[0])
    # Two failures beside one answer are no group: the answer is not better than a zero that nobody scored.
    only = tuple(replace(one, grade=replace(one.grade, outcome=outcome)) for one in plain.episodes[1:])
    assert grpo(Group(plain.task, (plain.episodes[0], *only), "worker", "home")) is None


def test_all_segments_share_the_reward_and_a_credit_by_segment_fits() -> None:
    two = Group(group(0, [1]).task, (graded(1, segment(), segment(6, 2)), graded(0, segment(), sample=1)), "worker", "home")
    found = grpo(two)
    assert found is not None
    assert len(found[0]) == 2
    assert found[0][0].max() == found[0][1].max() > 0

    def late(of: Group) -> tuple[tuple[np.ndarray, ...], ...]:
        return tuple(spread(one, [float(at) for at in range(len(one.segments))]) for one in of.episodes)

    rows, silent = rows_of([two], late)
    assert silent == 0
    assert [row.place for row in rows] == [(0, 0, 1)]  # the first segments are credited with nothing and cost nothing
    assert_array_equal(rows[0].advantages, np.float32([0, 0, 0, 0, 1, 1]))


def test_padding_lines_up_what_follows_each_token() -> None:
    long, short = segment(8, 4, seed=1), segment(5, 2, seed=2)
    rows, _ = rows_of([Group(group(0, [1]).task, (graded(1, long), graded(0, short, sample=1)), "worker", "home")], grpo)
    found = padded(rows)
    assert found.tokens.shape == (2, 7)
    assert_array_equal(found.tokens[1, :4], short.tokens[:-1])
    assert_array_equal(found.next[1, :4], short.tokens[1:])
    assert_array_equal(found.made[1], [False, False, True, True, False, False, False])
    assert_array_equal(found.old[0], long.logprobs[1:])
    assert found.experts is None


def test_batches_hold_every_row_once_within_their_size() -> None:
    rows, _ = rows_of([group(number, [1, 0, 0]) for number in range(7)], grpo)
    found = list(batches(rows, 40))
    assert sorted(index for batch in found for index in batch) == list(range(len(rows)))
    assert all(len(batch) * 8 <= 40 for batch in found)
    assert [len(batch) for batch in batches(rows, 1)] == [1] * len(rows)


def test_mismatch_is_what_its_formulas_say() -> None:
    old = np.log(np.float32([0.5, 0.5, 0.2, 0.1]))
    new = np.log(np.float32([0.5, 0.3, 0.5, 0.11]))
    found = mismatch(new, old)
    ratios = np.array([1, 0.6, 2.5, 1.1])
    assert found.tokens == 4
    assert_allclose(found.k1, -np.log(ratios).mean(), rtol=1e-5)
    assert_allclose(found.k3, (ratios - 1 - np.log(ratios)).mean(), rtol=1e-4)
    assert_allclose(found.largest, np.log(2.5), rtol=1e-5)
    assert found.out == 0.25
    assert mismatch(old, old).k3 == 0
    assert mismatch(old[:0], old[:0]).tokens == 0


def test_mismatch_is_told_by_region_and_version() -> None:
    new, old = np.float32([-1, -1, -1, -1]), np.float32([-1, -2, -1, -1.5])
    found = by_origin(new, old, ["a", "a", "b", "b"], np.array([1, 2, 2, 2]))
    assert {key: value.tokens for key, value in found.items()} == {("a", 1): 1, ("a", 2): 1, ("b", 2): 2}
    assert found["a", 1].k3 == 0
    assert found["b", 2].largest == 0.5
