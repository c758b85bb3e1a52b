import pytest
from hypothesis import given
from hypothesis import strategies as st

from weightsync.errors import Invalid
from weightsync.format.keys import RunKeys
from weightsync.store.keyrules import split_key

KEYS = RunKeys("run-1")
DIGEST = "a" * 64
PLAIN = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True).filter(lambda name: ".." not in name)
NUMBERS = st.integers(1, 1 << 53)


def every(keys: RunKeys, channel="latest", holder="host"):
    return [
        keys.run_record,
        keys.head(channel),
        keys.log(channel, 7, "0" * 16),
        keys.manifest(5),
        keys.payload(5, 4, "3"),
        keys.shard("3", 5, 4, DIGEST),
        keys.digests("3", 5, DIGEST),
        keys.layout(DIGEST),
        keys.file(DIGEST),
        keys.pin(5),
        keys.boundary,
        keys.lease(holder),
    ]


def test_the_keys_are_those_of_the_specification():
    assert every(KEYS) == [
        "run-1/run.json",
        "run-1/channels/latest/head",
        "run-1/channels/latest/log/7-0000000000000000",
        "run-1/versions/5/manifest",
        "run-1/versions/5/payloads/4-3",
        f"run-1/shards/3-5-4/{DIGEST}",
        f"run-1/digests/3-5/{DIGEST}",
        f"run-1/layouts/{DIGEST}",
        f"run-1/files/{DIGEST}",
        "run-1/pins/5",
        "run-1/gc/boundary",
        "run-1/leases/host",
    ]
    assert [KEYS.prefix, KEYS.channels, KEYS.payloads(5), KEYS.shards, KEYS.probes] == [
        "run-1/",
        "run-1/channels/",
        "run-1/versions/5/payloads/",
        "run-1/shards/",
        "run-1/probes/",
    ]


@given(PLAIN, PLAIN, PLAIN)
def test_every_store_takes_every_key_and_no_two_are_the_same(run, channel, holder):
    keys = every(RunKeys(run), channel, holder)
    assert len(set(keys)) == len(keys)
    for key in keys:
        assert split_key(key)[0] == run
        assert key.startswith(RunKeys(run).prefix)


@given(NUMBERS, st.integers(0, 1 << 53), st.from_regex(r"[0-9]{1,9}|g[0-9a-f]{16}", fullmatch=True))
def test_what_was_formatted_is_parsed(version, base, writer):
    assert KEYS.parse_payload(KEYS.payload(version, base, writer)) == (version, base, writer)
    assert KEYS.parse_shard(KEYS.shard(writer, version, base, DIGEST)) == (writer, version, base, DIGEST)
    assert KEYS.parse_log(KEYS.log("serving", version, "0" * 16)) == ("serving", version, "0" * 16)
    assert KEYS.log("serving", version, "0" * 16).startswith(KEYS.logs("serving", str(version // 100 or "")))
    assert KEYS.parse_shard(KEYS.payload(version, base, writer)) is None
    assert KEYS.parse_payload(KEYS.shard(writer, version, base, DIGEST)) is None


@pytest.mark.parametrize(
    "key",
    [
        "",
        "run-1/",
        "run-1/versions/5/payloads/",
        "run-1/versions/05/payloads/4-3",
        "run-1/versions/0/payloads/0-3",
        "run-1/versions/5/payloads/04-3",
        "run-1/versions/5/payloads/4-",
        "run-1/versions/5/payloads/4-X",
        "run-1/versions/5/payloads/4-3/x",
        "run-1/versions/5/payloads/4-3\n",
        "run-1/versions/٥/payloads/4-3",
        "run-1/versions/5/payloads/../4-3",
        "other/versions/5/payloads/4-3",
        "run-1/channels/latest/log/07-0000000000000000",
        "run-1/channels/latest/log/7-000000000000000G",
        "run-1/channels/latest/log/7-0000000000000000/x",
        "other/channels/latest/log/7-0000000000000000",
        f"run-1/shards/3-5-4/{'A' * 64}",
        f"run-1/shards/3-5-4/{'a' * 63}",
        f"run-1/shards/3-5/{DIGEST}",
        f"run-1/shards/-5-4/{DIGEST}",
        f"run-1/shards/3-5-4/{DIGEST}/x",
        f"other/shards/3-5-4/{DIGEST}",
    ],
)
def test_other_keys_are_not_taken_for_ours(key):
    assert KEYS.parse_payload(key) is None
    assert KEYS.parse_shard(key) is None
    assert KEYS.parse_log(key) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a\\b", "/a", "a..b", ".a", "-a", "_a", "a b", "a\n", "a\0", "é", "a" * 129, "a%2e"]
)
def test_names_from_outside_do_not_become_paths(name):
    for make in (RunKeys, KEYS.head, KEYS.lease, lambda channel: KEYS.log(channel, 1, "0" * 16)):
        with pytest.raises(Invalid, match="not allowed"):
            make(name)
