"""Tables: which versions stay, and why."""

import pytest

from weightsync.errors import Invalid
from weightsync.format.operators import Lease, Pin
from weightsync.retention.policy import DAY_MS, HOUR_MS, Policy, Wishes, decide

NOW = 400 * DAY_MS + 5 * HOUR_MS + 1
GRACE = HOUR_MS


def kept(policy=None, committed=None, **wishes):
    committed = committed if committed is not None else dict.fromkeys(range(1, 11), NOW)
    return list(decide(policy or Policy(2, grace_ms=GRACE), committed, Wishes(**wishes), NOW))


def pin(version):
    return Pin("r", version, "op", "release", 0)


def lease(version, expires_ms):
    return Lease("r", f"host--{version}", version, expires_ms)


@pytest.mark.parametrize(
    ("wishes", "more"),
    [
        ({}, []),
        ({"channels": {"latest": 10}}, []),
        ({"channels": {"latest": 4, "serving": 2, "canary": 4}}, [2, 4]),
        ({"channels": {"empty": 0}}, []),
        ({"pins": [pin(1), pin(9)]}, [1]),
        ({"pins": [pin(77)]}, []),
        ({"leases": [lease(3, NOW + 1)]}, [3]),
        ({"leases": [lease(3, NOW - GRACE + 1)]}, [3]),  # it has expired, and the control plane may be away
        ({"leases": [lease(3, NOW - GRACE)]}, []),
    ],
    ids=str,
)
def test_what_others_want_stays(wishes, more):
    assert kept(**wishes) == sorted({*more, 9, 10})


@pytest.mark.parametrize(("keep", "expected"), [(1, [7]), (2, [5, 7]), (3, [2, 5, 7]), (99, [1, 2, 5, 7])])
def test_the_highest_numbers_stay(keep, expected):
    assert kept(Policy(keep), dict.fromkeys((5, 1, 7, 2), 0)) == expected


def test_one_of_each_hour_and_day():
    hours = {n: NOW - (40 - n) * HOUR_MS // 4 for n in range(1, 41)}  # four an hour, the newest one now
    # It is 5:00 and a moment: of each hour back to 2:00 the one of a quarter to.
    assert kept(Policy(1, hourly=4), hours) == [31, 35, 39, 40]
    days = {n: NOW - (40 - n) * DAY_MS // 2 for n in range(1, 41)}
    # Two a day, at 5:00 and 17:00.
    assert kept(Policy(1, daily=3), days) == [37, 39, 40]
    assert kept(Policy(1, daily=2, hourly=1), days) == [39, 40]
    assert kept(Policy(1), days) == [40]


def test_what_is_gone_counts_among_the_highest_and_stays_gone():
    found = decide(Policy(3), dict.fromkeys(range(1, 6), NOW), Wishes(pins=[pin(4)]), NOW, gone={3, 4})
    assert list(found) == [5]


def test_an_hour_whose_newest_is_gone_keeps_another():
    assert list(decide(Policy(1, hourly=1), {1: NOW, 2: NOW, 3: NOW, 4: NOW}, Wishes(), NOW, gone={3})) == [4]
    assert list(decide(Policy(1, daily=3), {1: NOW - DAY_MS, 2: NOW - DAY_MS, 3: NOW}, Wishes(), NOW, gone={2})) == [1, 3]


def test_every_reason_is_told():
    found = decide(
        Policy(1, hourly=1, grace_ms=0),
        {1: NOW - DAY_MS, 2: NOW},
        Wishes({"latest": 2, "serving": 1}, [pin(1)], [lease(2, NOW + 1000)]),
        NOW,
    )
    assert found == {
        1: ("channel 'serving' points to it", "pinned by op: release"),
        2: (
            "1 of the 1 highest",
            "newest of the hour 1971-02-05T05",
            "channel 'latest' points to it",
            "lease 'host--2' until 1971-02-05T05:00:01+00:00",
        ),
    }


@pytest.mark.parametrize("bad", [{"keep": 0}, {"keep": 1, "hourly": -1}, {"keep": 1, "daily": -1}, {"keep": 1, "grace_ms": -1}], ids=str)
def test_impossible_policies(bad):
    with pytest.raises(Invalid):
        Policy(**bad)
