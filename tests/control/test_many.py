"""Many watchers, and a server that is killed: the small tier of `python -m benchmarks.control`."""

import json

import pytest

from benchmarks import control
from tests.control.plane import Plane
from weightsync.testing.watch_history import CHECKS, Bookmark, Connected, History, Interrupted, Moved, violations


def test_200_watchers_get_every_event_once_and_in_order(tmp_path, capsys):
    out = tmp_path / "out.json"
    assert control.main(["watchers", "--watchers", "200", "--versions", "20", "--gap", "0", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert (result["attached"], result["events_delivered"]) == (200, 200 * 22)
    assert result["server_rss_mib"] < 200


def test_watchers_go_on_over_kills_of_the_server(capsys):
    assert control.main(["kills", "--watchers", "25", "--kills", "3", "--seed", "7"]) == 0


def truth(count: int):
    with Plane() as plane:
        run = plane.run(count)
        return {move.sequence: Moved(move.sequence, digest, move) for move, digest in run.catalog.history(run.claim.head)}


TRUE = truth(4)  # sequences 1 to 5
E = TRUE
GOOD = [Connected(0), Bookmark(0), E[1], E[2], Interrupted(2), Connected(2), Bookmark(2), E[3], Bookmark(3), E[4], E[5]]


def test_a_good_history_has_no_findings():
    assert violations([History("w", GOOD)], TRUE) == {name: [] for name in CHECKS}


@pytest.mark.parametrize(
    ("promise", "entries"),
    [
        ("ordered", [Connected(0), E[2], E[1], E[3], E[4], E[5]]),
        ("ordered", [Connected(0), E[1], E[1], E[2], E[3], E[4], E[5]]),
        ("unique", [Connected(0), E[1], E[2], Interrupted(), Connected(1), E[2], E[3], E[4], E[5]]),
        ("reliable", [Connected(0), E[1], E[2], E[4], E[5]]),
        ("reliable", [Connected(0), E[1], E[2], E[3], E[4]]),
        ("atomic", [Connected(0), E[1], Moved(2, E[2].digest, None), E[3], E[4], E[5]]),
        ("atomic", [Connected(0), E[1], Moved(2, E[3].digest, E[3].move), E[3], E[4], E[5]]),
        ("resumable", [Connected(0), E[1], E[2], Interrupted(), Connected(2), E[4], E[5]]),
        ("resumable", [Connected(0), E[1], E[2], Interrupted(), Connected(3), E[4], E[5]]),
        ("resumable", [Connected(0), E[1], E[2], E[3], Interrupted(1), Connected(3), E[4], E[5]]),
        ("bookmarkable", [Connected(0), E[1], Bookmark(3), E[2], E[3], E[4], E[5]]),
        ("bookmarkable", [Connected(0), E[1], E[2], Bookmark(1), E[3], E[4], E[5]]),
    ],
)
def test_a_broken_promise_is_found(promise, entries):
    assert violations([History("w", entries)], TRUE)[promise]
