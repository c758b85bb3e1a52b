"""When snapshots and folds are due: pure rules, held against what they promise."""

from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync.publisher.snapshots import Chain, ChainFacts, SnapshotPolicy, due, fold_base


def run_of(policy: SnapshotPolicy, versions: int, delta: int, snapshot: int) -> list[int]:
    """The versions of which a snapshot is made, in a run of even deltas."""
    chain, made = Chain(), []
    chain.start(1, snapshot)
    for version in range(2, versions + 1):
        chain.add(version - 1, version, delta)
        if due(policy, chain.facts(version)):
            chain.start(version, snapshot)
            made.append(version)
    return made


def test_an_explicit_cadence():
    assert run_of(SnapshotPolicy(every=25), 101, 1, 10**9) == [26, 51, 76, 101]
    assert run_of(SnapshotPolicy(every=0, readers=1e9), 300, 10**6, 10) == []


def test_nobody_starts_anew_so_none_is_made():
    assert run_of(SnapshotPolicy(readers=0.0, catch_up_s=1e9), 300, 10**6, 10**8) == []


def test_the_more_readers_the_more_often():
    made = [len(run_of(SnapshotPolicy(readers=readers, catch_up_s=1e9), 600, 5 * 10**5, 66 * 10**6)) for readers in (0.01, 0.1, 1.0, 10.0)]
    assert made == sorted(made)
    assert made[0] < made[-1]


@settings(max_examples=25, deadline=None)
@given(st.floats(0.001, 10), st.integers(10**3, 10**6), st.integers(10**5, 10**8), st.floats(0, 2))
def test_at_most_twice_what_the_best_even_cadence_costs(readers, delta, snapshot, stored):
    """Bytes of snapshots, and of chains that readers download beside them."""
    versions = 200
    policy = SnapshotPolicy(readers=readers, stored_cost=stored, catch_up_s=1e12)

    def costs(made: list[int]) -> float:
        total, last, known = 0.0, 1, set(made)
        for version in range(2, versions + 1):
            if version in known:
                last = version
                total += snapshot * (1 + stored)
            total += readers * delta * (version - last)
        return total

    best = min(costs(list(range(1 + every, versions + 1, every))) for every in range(1, versions + 1))
    # The last chain may have cost one snapshot more than was known to be needed.
    assert costs(run_of(policy, versions, delta, snapshot)) <= 2 * best + snapshot * (1 + stored) + readers * delta * 2


def test_too_slow_to_catch_up():
    policy = SnapshotPolicy(readers=0.0, catch_up_s=60.0, link_bytes_s=1e6)
    assert not due(policy, ChainFacts(50, 9 * 10**6, 0, 50 * 10**6))
    assert not due(policy, ChainFacts(50, 49 * 10**6, 0, 50 * 10**6))  # a new one would help too little
    assert "catching up takes" in due(policy, ChainFacts(50, 51 * 10**6, 0, 50 * 10**6))


def test_folds_shorten_the_chain():
    chain = Chain()
    chain.start(1, 1000)
    for version in range(2, 20):
        chain.add(version - 1, version, 10)
    assert chain.facts(19).nbytes == 180
    chain.add(1, 8, 30)
    chain.add(8, 16, 35)
    assert chain.facts(19).nbytes == 30 + 35 + 30
    assert chain.facts(19).versions == 18
    chain.start(16, 1000)
    assert chain.facts(19) == ChainFacts(3, 30, 60, 1000)


def test_after_a_restart_the_chain_is_what_the_store_says():
    chain = Chain()
    chain.resume(10, 1000, 30, 20, 500)
    assert chain.facts(30) == ChainFacts(20, 500, 5000, 1000)
    assert chain.knows(30)
    assert not chain.knows(7)
    chain.add(30, 31, 10)
    assert chain.facts(31).nbytes == 510


def ancestors(version: int) -> list[int]:
    return list(range(version - 1, 0, -1))


def test_folds_join_end_to_end():
    bases = {version: fold_base(ancestors(version), version, 8) for version in range(2, 34)}
    assert {version: base for version, base in bases.items() if base} == {8: 1, 16: 8, 24: 16, 32: 24}


def test_folds_over_void_numbers():
    assert fold_base([15, 12, 9, 7, 6], 17, 8) == 9  # 9 is the first of its eight
    assert fold_base([9, 7, 6, 5], 17, 8) == 0  # that would be the delta again
    assert fold_base([15, 14], 16, 8) == 0  # too little is known
    assert fold_base([15, 14, 13, 12], 16, 8) == 12
    assert fold_base([], 16, 8) == 0


def test_folds_after_a_fork():
    assert fold_base([12, 11, 10, 9, 8, 7], 21, 8) == 8
