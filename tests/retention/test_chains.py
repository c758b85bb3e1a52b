"""What the versions that stay need of the others."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from weightsync.retention.chains import Edge, chains, cheapest_path


def edge(base, target, nbytes=1, **more):
    return Edge(f"{base}>{target}", base, target, nbytes, **more)


CHAIN = [edge(0, 1, 100), *(edge(n - 1, n, 5) for n in range(2, 11))]


def test_a_chain_is_kept_back_to_its_snapshot():
    found = chains({8, 9, 10}, CHAIN)
    assert found.names == tuple(sorted(f"{n - 1}>{n}" for n in range(1, 8)))
    assert found.nbytes == 130
    assert list(found.paths) == [8]
    assert not found.broken


def test_what_stays_pays_for_its_own_payloads():
    assert chains(set(range(1, 11)), CHAIN).names == ()
    assert chains({1, 9, 10}, CHAIN).names == tuple(sorted(f"{n - 1}>{n}" for n in range(2, 9)))


def test_a_snapshot_makes_what_is_behind_it_needless():
    assert chains({8, 9, 10}, [*CHAIN, edge(0, 8, 100)]).names == ()
    assert chains({8, 9, 10}, [*CHAIN, edge(0, 7, 100)]).names == ("0>7",)
    assert chains({8, 9, 10}, [*CHAIN, edge(0, 7, 131)]).nbytes == 130


def test_folds_are_taken_where_they_are_cheaper():
    assert chains({10}, [*CHAIN, edge(1, 8, 20)]).names == ("0>1", "1>8", "8>9")


def test_chains_of_several_share():
    """Forks: 5 and 7 both grow from 4."""
    edges = [edge(0, 1, 100), edge(1, 4, 5), edge(4, 5, 5), edge(4, 6, 5), edge(6, 7, 5), edge(0, 6, 20)]
    assert chains({5, 7}, edges).names == ("0>1", "1>4", "4>6")


def test_what_cannot_be_rebuilt_keeps_all_that_might_be_repaired():
    edges = [edge(0, 1, 100), edge(1, 2, usable=False), edge(2, 3), edge(0, 4)]
    found = chains({3, 4}, edges)
    assert found.broken == (3,)
    assert found.names == ("0>1", "1>2")


def test_a_path_from_what_is_there():
    assert [e.name for e in cheapest_path(4, CHAIN) or ()] == ["3>4", "2>3", "1>2", "0>1"]
    assert [e.name for e in cheapest_path(4, CHAIN, {2}) or ()] == ["3>4", "2>3"]
    assert cheapest_path(4, CHAIN, {4}) == ()
    assert cheapest_path(11, CHAIN) is None


def reachable(edges):
    found, grown = {0}, True
    while grown:
        more = {e.target for e in edges if e.usable and e.base in found} - found
        grown = bool(more)
        found |= more
    return found


PAIRS = st.tuples(st.integers(0, 6), st.integers(1, 7), st.integers(1, 9)).filter(lambda pair: pair[0] < pair[1])
EDGES = st.lists(PAIRS, max_size=9).map(lambda found: [Edge(f"{i}", *pair, usable=i % 5 > 0) for i, pair in enumerate(found)])


@settings(max_examples=150, deadline=None)
@given(EDGES, st.sets(st.integers(1, 7), min_size=1, max_size=3))
def test_whatever_can_be_reached_still_can(edges, stays):
    found = chains(stays, edges)
    own = [e for e in edges if e.target in stays]
    assert found.broken == tuple(sorted(stays - reachable(edges)))
    assert stays - set(found.broken) <= reachable([*own, *found.bought])
    assert all(e.target not in stays for e in found.bought)
    # For one version the choice is the cheapest there is.
    if len(stays) == 1 and not found.broken:
        others = [e for e in edges if e.target not in stays and e.usable]
        least = min(
            sum(e.nbytes for e in part)
            for size in range(len(others) + 1)
            for part in combinations(others, size)
            if stays <= reachable([*own, *part])
        )
        assert found.nbytes == least
