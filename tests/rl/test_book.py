"""The hub's book: each group counts once, nothing too old is consumed, and there is always something to do."""

import copy
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from weightsync.errors import Unavailable
from weightsync.rl.book import Book, Work, Worker
from weightsync.rl.checkpoint import Numbers
from weightsync.rl.lag import Ages, Bound, capacity, room
from weightsync.rl.records import Episode, Grade, Group, Outcome, Segment, Task

BOUNDS = [Bound(0), Bound(1), Bound(3), Bound(2, 6.0)]


def group_of(task: Task, version: int, worker: str = "w0") -> Group:
    tokens = np.array([1, 2, 0], np.int32)
    made = np.array([False, True, True])
    segment = Segment(tokens, made, np.zeros(3, np.float32), np.where(made, version, 0).astype(np.int64))
    episodes = tuple(Episode(sample, (segment,), Grade(Outcome.GRADED, 1.0)) for sample in range(task.samples))
    return Group(task, episodes, worker, f"region of {worker}")


@given(st.integers(0, 10), st.integers(1, 64), st.integers(0, 20), st.integers(0, 2000))
def test_room_is_never_negative_and_an_empty_loop_can_always_start(lag, per_step, behind, under_way):
    bound = Bound(lag)
    assert 0 <= room(bound, per_step, behind=behind, under_way=under_way) <= capacity(bound, per_step)
    assert capacity(bound, per_step) >= per_step > 0
    assert room(bound, per_step, behind=min(behind, lag), under_way=0) >= per_step


def test_ages_are_of_the_version_that_came_after():
    ages = Ages()
    for version, at in ((1, 10.0), (2, 20.0), (4, 30.0)):
        ages.seen(version, at)
    ages.seen(3, 99.0)  # versions never go back
    assert (ages.newest, ages.lag_s(4, 50.0), ages.lag_s(2, 50.0), ages.lag_s(1, 50.0)) == (4, 0.0, 20.0, 30.0)
    assert ages.within(Bound(2, 20.0), 2, 50.0)
    assert not ages.within(Bound(1, 20.0), 2, 50.0)
    assert not ages.within(Bound(2, 19.0), 2, 50.0)


def test_a_hub_that_starts_anew_takes_nothing_whose_age_it_cannot_know():
    work = Work("sort", 2, 1, Bound(2, 6.0))
    before = Book(work)
    before.begin(Numbers(), 0, 1, 0.0)
    task, _, _ = before.lease("w", Worker("r", 1, 0.0), (), 0.0, wants=True)
    assert task is not None
    before.confirm(Numbers(), 0, 2, {}, 1.0)
    for seconds, takes in ((6.0, False), (inf, True)):
        book = Book(Work("sort", 2, 1, Bound(2, seconds)))
        book.begin(Numbers(), 0, 2, 100.0)
        assert (book.lease("w", Worker("r", 1, 100.0), (), 100.0, wants=True)[0] is not None) is takes
        again, _, why = book.lease("other", Worker("r", 2, 100.0), (), 100.0, wants=True)
        assert again is not None, why
        assert book.submit(group_of(task, 1), 100.0) is takes
        assert [group.oldest_version for group in book.take(2, 100.0)] == ([1] if takes else [])


def test_nothing_goes_out_before_the_trainer_has_said_what_counts():
    with pytest.raises(Unavailable, match="has not begun"):
        Book(Work()).lease("w", Worker("r", 1, 0.0), (), 0.0, wants=True)


class Loop(RuleBasedStateMachine):
    """Workers, a trainer and a hub that do what they may, are lost, and come again."""

    def __init__(self):
        super().__init__()
        self.now, self.version, self.step = 0.0, 1, 0

    @initialize(bound=st.sampled_from(BOUNDS), per_step=st.integers(1, 3))
    def start(self, bound, per_step):
        self.work = Work("sort", 2, per_step, bound, lease_s=5.0)
        self.durable = Numbers()
        self.counted: list[int] = []
        self.held: list[tuple[str, Task, int]] = []
        self.done: list[Group] = []
        self.in_step: list[Group] = []
        self.new_hub()

    @rule()
    def new_hub(self):
        self.book = Book(self.work)
        self.book.begin(self.durable, self.step, self.version, self.now)
        self.in_step = []

    @rule()
    def new_trainer(self):
        self.in_step = []
        self.book.begin(self.durable, self.step, self.version, self.now)

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule(worker=st.sampled_from(["w0", "w1", "w2"]), behind=st.integers(0, 3))
    def lease(self, worker, behind):
        version = max(1, self.version - behind)
        mine = [task.number for name, task, _ in self.held if name == worker]
        task, give_up, why = self.book.lease(worker, Worker("r", version, self.now), mine, self.now, wants=True)
        self.held = [one for one in self.held if not (one[0] == worker and one[1].number in give_up)]
        assert (task is None) == bool(why)
        if task is not None:
            assert task.number not in self.durable
            self.held.append((worker, task, version))

    @rule(data=st.data(), again=st.booleans())
    def submit(self, data, again):
        pool = self.done if again else self.held
        if not pool:
            return
        chosen = data.draw(st.sampled_from(pool))
        if again:
            group = chosen
        else:
            self.held.remove(chosen)
            group = group_of(chosen[1], chosen[2], chosen[0])
            self.done.append(group)
        self.book.submit(group, self.now)

    @rule(worker=st.sampled_from(["w0", "w1", "w2"]))
    def die(self, worker):
        self.held = [one for one in self.held if one[0] != worker]

    @rule()
    def take(self):
        taken = self.book.take(self.version, self.now)
        assert len(taken) in (0, self.work.per_step)
        for group in taken:
            assert self.version - group.oldest_version <= self.work.bound.versions
        self.in_step = taken

    @rule(durable=st.booleans())
    def consume(self, durable):
        if not self.in_step:
            return
        numbers = [group.task.number for group in self.in_step]
        self.in_step = []
        if durable:
            assert not set(numbers) & set(self.counted)
            self.counted += numbers
            self.durable = self.durable.plus(numbers)
            self.step += 1
            self.version += 1
            self.book.confirm(self.durable, self.step, self.version, {}, self.now)
        else:
            self.new_trainer()

    @invariant()
    def no_number_is_in_two_places(self):
        book = self.book
        places = [*book.leases, *book.queue, *book.taken]
        assert len(places) == len(set(places))
        assert not [number for number in places if number in book.consumed]

    @invariant()
    def it_can_always_go_on(self):
        """Whatever happened, one good worker and a trainer that waits bring the next step to its end."""
        if self.in_step:
            return
        book = copy.deepcopy(self.book)
        now = self.now + 2 * self.work.lease_s  # silent workers are given up
        for _ in range(8 * self.work.per_step):
            if book.take(self.version, now):
                return
            task, _, why = book.lease("good", Worker("r", self.version, now), (), now, wants=True)
            assert task is not None, why
            assert book.submit(group_of(task, self.version), now)
        raise AssertionError("no step came together")


Loop.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLoop = Loop.TestCase
