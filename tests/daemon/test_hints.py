"""Hints come when they can, and never hold anything up."""

import threading
from dataclasses import replace

import pytest

from tests.daemon.planes import Plane
from weightsync.daemon import hints
from weightsync.daemon.hints import Notices, Reporter, Sight, Watch
from weightsync.errors import Compacted, Denied, Unavailable
from weightsync.telemetry.facts import SubscriberFact

FIRST = SubscriberFact("host", "eu", "directory", "latest")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hints, "RETRY_S", 0.01)
    monkeypatch.setattr(hints, "CALM_S", 0.0)
    monkeypatch.setattr(hints, "JOIN_S", 0.3)


@pytest.fixture
def plane():
    made = Plane()
    yield made
    made.close()


class Seen:
    """What a watch called back."""

    def __init__(self):
        self.moves, self.states = [], []
        self._news = threading.Condition()

    def move(self, sequence):
        with self._news:
            self.moves.append(sequence)
            self._news.notify_all()

    def state(self, on):
        with self._news:
            self.states.append(on)
            self._news.notify_all()

    def until(self, condition):
        with self._news:
            assert self._news.wait_for(condition, 30)


def test_a_watch_tells_of_each_new_sequence_once(plane):
    seen = Seen()
    with Watch(plane, "run", "latest", seen.move, seen.state):
        for sequence in (3, 3, None, 2, 4):
            plane.sights.put(Sight(sequence, connected=True))
        seen.until(lambda: seen.moves == [3, 4])
        assert plane.next("watch") == ("watch", "run", "latest", None)
        plane.sights.put(Unavailable("gone"))
        assert plane.next("watch") == ("watch", "run", "latest", 4)  # it goes on after what it has seen
        seen.until(lambda: seen.states[-1] is False)
        plane.close()


def test_a_watch_starts_anew_below_the_kept_history(plane):
    seen = Seen()
    with Watch(plane, "run", "latest", seen.move, seen.state):
        plane.sights.put(Sight(3, connected=True))
        plane.sights.put(Compacted("too old"))
        plane.next("watch")
        assert plane.next("watch")[3] is None
        plane.close()


@pytest.mark.parametrize("error", [Denied("not for you"), Unavailable("away")])
def test_a_watch_tries_again_whatever_is_wrong(plane, error):
    seen = Seen()
    with Watch(plane, "run", "latest", seen.move, seen.state):
        for _ in range(3):
            plane.sights.put(error)
            plane.next("watch")
        plane.sights.put(Sight(7, connected=True))
        seen.until(lambda: seen.moves == [7])
        plane.close()


def test_reports_follow_what_is_said_and_only_the_newest_counts(plane):
    sent = []
    with Reporter(plane, "run", FIRST, sent.append) as reporter:
        assert plane.next("register")[2] == FIRST
        plane.next("report")
        for version in range(1, 50):
            reporter.say(replace(FIRST, served=version))
        while plane.next("report")[2].served != 49:
            pass
        again = plane.next("report")[2]  # a sign of life
        assert again.served == 49
    assert set(sent) == {True}


def test_a_server_that_forgot_is_told_again(plane):
    with Reporter(plane, "run", FIRST, lambda ok: None):
        plane.next("report")
        plane.known.clear()
        plane.next("register")
        plane.next("report")


def test_a_server_that_forgot_hears_at_once_what_is_served(plane):
    with Reporter(plane, "run", FIRST, lambda ok: None):
        plane.next("report")
        plane.next("report")  # the first one was taken: nothing is left to say
        plane.interval_s = 86_400.0
        plane.known.clear()
        plane.next("register")
        plane.next("report")  # not a day later


def test_reports_go_on_when_the_server_is_back(plane):
    sent = []
    plane.down.set()
    with Reporter(plane, "run", FIRST, sent.append):
        plane.next("register")
        plane.next("register")
        plane.down.clear()
        plane.next("report")
    assert False in sent


@pytest.mark.parametrize(
    "make", [lambda plane: Reporter(plane, "run", FIRST, lambda ok: None), lambda plane: Notices(plane, "run", "latest", lambda ok: None)]
)
def test_a_call_that_hangs_holds_nobody_up(plane, make):
    plane.hang.set()
    worker = make(plane).start()
    say = worker.tell if isinstance(worker, Notices) else lambda: worker.say(FIRST)
    say()
    plane.calls.get()  # it hangs in there
    for _ in range(1000):
        say()
    worker.close()  # gives up waiting for it
    assert worker._thread.is_alive()


def test_each_commit_is_told_and_a_lost_notice_is_lost(plane):
    sent = []
    with Notices(plane, "run", "latest", sent.append) as notices:
        notices.tell()
        assert plane.next("notify") == ("notify", "run", "latest")
        plane.down.set()
        notices.tell()
        plane.next("notify")
        plane.down.clear()
        notices.tell()
        plane.next("notify")
    assert sent[:2] == [True, False]
