"""Lags and alarms by tables: facts in, words out."""

from dataclasses import replace

import pytest

from weightsync.telemetry.alarms import Thresholds, alarms
from weightsync.telemetry.facts import ChannelFact, Lag, RunFacts, SubscriberFact, UpdateFact, VersionFact, groups, lag, to_json
from weightsync.telemetry.names import ALARMS

NOW = 10_000.0


def version(number, changed=100, *, age=None, snapshot=False):
    committed = NOW - (10 * (20 - number) if age is None else age)
    return VersionFact(number, number, committed, 1, snapshot, changed, 10_000, changed, 20_000)


def channel(name="latest", number=10, *, moved=None, expires=None):
    return ChannelFact(name, number, number + 1, 1, version(number).committed_s if moved is None else moved, "me", expires_s=expires)


def subscriber(served=10, name="host", **changes):
    return replace(SubscriberFact(name, "eu", "directory", "latest", held=served, served=served, stage="idle"), **changes)


def facts(*subscribers, channels=None, versions=None):
    return RunFacts(
        "run", NOW, tuple(channels or [channel()]), tuple([version(n) for n in range(1, 11)] if versions is None else versions), subscribers
    )


@pytest.mark.parametrize(
    ("one", "seen", "expected"),
    [
        (subscriber(10), {}, Lag()),
        (subscriber(9), {}, Lag(1, 100.0)),  # version 10 was committed 100 s ago
        (subscriber(7), {}, Lag(3, 120.0)),  # missed 8, 9, 10: since version 8
        (subscriber(0), {}, Lag(10, 190.0)),
        (subscriber(0, registered_s=NOW - 5), {}, Lag(10, 5.0)),  # nobody is behind for longer than they exist
        (subscriber(10), {"channels": [channel(number=8, moved=NOW - 7)]}, Lag(1, 7.0)),  # rolled back, and not followed yet
        (subscriber(8), {"channels": [channel(number=8, moved=NOW - 7)]}, Lag()),
        (subscriber(4, channel="serving"), {"channels": [channel(), channel("serving", 6, moved=NOW - 30)]}, Lag(2, 30.0)),
        (subscriber(4, channel="nowhere"), {}, Lag()),
        (subscriber(4, channel="serving"), {"channels": [channel("serving", 0)]}, Lag()),
        (subscriber(4, channel="version-4"), {}, Lag()),
        (subscriber(0, channel="version-4", registered_s=NOW - 3), {}, Lag(4, 3.0)),
        (subscriber(2), {"versions": [version(n) for n in (8, 9, 10)]}, Lag(8, 120.0)),  # older versions were not looked at
        (subscriber(9), {"versions": []}, Lag(1, 100.0)),
        (subscriber(3), {"versions": [version(n) for n in (3, 5, 10)]}, Lag(2, 150.0)),  # numbers that are void do not count
    ],
)
def test_lag(one, seen, expected):
    assert lag(facts(one, **seen), one) == expected


OFF = Thresholds(0, 0, 0, 0, 0, 0)
STEADY = [version(n, 100 + n) for n in range(1, 11)]


@pytest.mark.parametrize(
    ("seen", "limits", "expected"),
    [
        (facts(subscriber()), Thresholds(), []),
        (facts(), Thresholds(), []),
        (facts(subscriber(9)), replace(OFF, behind_s=99), ["behind_s"]),
        (facts(subscriber(9)), replace(OFF, behind_s=100), []),
        (facts(subscriber(7)), replace(OFF, behind_versions=2), ["behind_versions"]),
        (facts(subscriber(7)), replace(OFF, behind_versions=3), []),
        (facts(subscriber(7), subscriber(name="other")), replace(OFF, below_s=60), ["below_channel"]),
        (facts(subscriber(7), subscriber(6, "other")), replace(OFF, below_s=200), []),
        (facts(versions=[*STEADY, *(version(n, 0) for n in (11, 12, 13))]), Thresholds(), ["unchanged"]),
        (facts(versions=[*STEADY, *(version(n, 0) for n in (11, 12))]), Thresholds(), []),
        (facts(versions=[version(11, 0), version(12, 0)]), replace(OFF, unchanged_versions=3), []),
        (facts(versions=[*STEADY, version(11, 5000)]), Thresholds(), ["unusual_change"]),
        (facts(versions=[*STEADY, version(11, 500)]), Thresholds(), []),  # less than five times the median
        (facts(versions=[*STEADY, version(11, 10_000, snapshot=True)]), Thresholds(), ["unusual_change"]),  # sent whole: everything changed
        (facts(versions=[version(1, 10_000, snapshot=True)]), Thresholds(), []),
        (facts(versions=[version(1, 10_000, snapshot=True), version(2), version(3), version(4)]), Thresholds(), []),
        (facts(versions=[version(1, 1), version(2, 1), version(3, 900)]), Thresholds(), []),  # too little to compare with
        (facts(versions=[version(1, age=4000)]), Thresholds(), ["silent"]),
        (facts(versions=[version(1, age=4000)]), OFF, []),
        (facts(versions=[]), Thresholds(), []),
        (facts(channels=[channel(expires=NOW - 1)]), OFF, ["expired"]),
        (facts(channels=[channel(expires=NOW + 1)]), OFF, []),
        (facts(subscriber(stage="failed")), OFF, ["failing"]),
        (facts(subscriber(error_kind="corrupt", error="bad bytes")), OFF, ["failing"]),
        (
            facts(subscriber(1, error_kind="denied"), channels=[channel(expires=1.0)], versions=[version(n, 0) for n in range(1, 11)]),
            Thresholds(90, 2, 60, 3, 5, 50),
            ["behind_s", "behind_versions", "below_channel", "unchanged", "silent", "expired", "failing"],
        ),
    ],
)
def test_alarms(seen, limits, expected):
    raised = alarms(seen, limits)
    assert [alarm.alarm for alarm in raised] == expected
    assert {alarm.alarm for alarm in raised} <= set(ALARMS)
    assert all(alarm.detail and alarm.subject for alarm in raised)


def test_who_is_meant_is_said():
    details = [alarm.detail for alarm in alarms(facts(*(subscriber(1, f"host-{n}") for n in range(9))), replace(OFF, below_s=1))]
    assert details == ["9 of 9 subscribers are below their channel: host-0, host-1, host-2, host-3, host-4 and 4 more"]


def test_groups_are_the_worst_of_their_members():
    update = UpdateFact(10, 5, pause_s=0.25)
    found = groups(
        facts(
            subscriber(7, "a", fetched_bytes=10),
            subscriber(10, "b", fetched_bytes=5, update=update),
            subscriber(9, "c", region="us", stage="failed"),
        )
    )
    assert [(one.region, one.subscribers, one.below, one.failing, one.lag_versions, one.fetched_bytes, one.pause_s) for one in found] == [
        ("eu", 2, 1, 0, 3, 15, 0.25),
        ("us", 1, 1, 1, 1, 0, 0.0),
    ]
    assert found[0].lag_s == 120.0


def test_json_has_lags_and_nothing_is_left_out():
    seen = facts(subscriber(9, update=UpdateFact(9, 1)))
    document = to_json(seen, alarms(seen, replace(OFF, behind_s=1)))
    assert document["subscribers"][0]["lag_versions"] == 1
    assert document["subscribers"][0]["update"]["version"] == 9
    assert document["alarms"][0]["alarm"] == "behind_s"
    assert document["regions"][0]["below"] == 1
    assert to_json(replace(seen, subscribers=None))["subscribers"] is None
