"""Which payloads the versions that stay need: every one of them must be reachable from nothing. Pure.

Versions are nodes, 0 is nothing, payloads are edges that cost the bytes which keeping them takes. A version that stays keeps its own
payloads anyway, so those cost nothing; what is bought are edges into versions that go. Buying the fewest bytes in all is a Steiner problem;
one cheapest path after another, each starting from whatever is reached already, is close enough (and exact for a chain).
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count


@dataclass(frozen=True)
class Edge:
    """A payload. `name`: as the boundary spells it; `base` 0: a snapshot; `nbytes`: of its shards, and of leaves and manifest.

    Where some of its objects are missing it is not `usable`: nobody relies on it, but it may be repaired.
    """

    name: str
    base: int
    target: int
    nbytes: int
    writer: str = ""
    usable: bool = True


@dataclass(frozen=True)
class Chains:
    """What keeps the versions that stay alive. `paths`: for each whose chain comes from versions that go, the edges bought for it.

    `broken`: versions that stay and that nothing usable leads to; their paths are all edges that might, once repaired.
    """

    paths: Mapping[int, tuple[Edge, ...]] = field(default_factory=dict)
    broken: tuple[int, ...] = ()

    @property
    def bought(self) -> frozenset[Edge]:
        """All edges that are kept for the chains' sake alone."""
        return frozenset(edge for path in self.paths.values() for edge in path)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept for the chains' sake alone."""
        return sum(edge.nbytes for edge in self.bought)

    @property
    def names(self) -> tuple[str, ...]:
        """What was bought, as the boundary names it."""
        return tuple(sorted(edge.name for edge in self.bought))


@dataclass
class _Search:
    edges: Iterable[Edge]
    stays: Collection[int]
    reached: set[int] = field(default_factory=lambda: {0})

    def __post_init__(self) -> None:
        self.free: dict[int, list[Edge]] = defaultdict(list)
        self.onward: dict[int, list[Edge]] = defaultdict(list)
        self.into: dict[int, list[Edge]] = defaultdict(list)
        for edge in self.edges:
            self.into[edge.target].append(edge)
            if not edge.usable:
                continue
            (self.free if edge.target in self.stays else self.onward)[edge.base].append(edge)

    def reach(self, *nodes: int) -> None:
        """Adds `nodes`, and whatever costs nothing from there."""
        stack = list(nodes)
        while stack:
            node = stack.pop()
            self.reached.add(node)
            stack.extend(edge.target for edge in self.free[node] if edge.target not in self.reached)

    def cheapest(self, target: int) -> list[Edge] | None:
        """The edges to buy for `target`, from what is reached."""
        order = count()
        queue = [(0, next(order), node) for node in sorted(self.reached)]
        costs, came = dict.fromkeys(self.reached, 0), dict[int, Edge]()
        while queue:
            so_far, _, node = heapq.heappop(queue)
            if node == target:
                return list(_back(came, node))
            if so_far > costs[node]:
                continue
            for edge, price in (*((e, e.nbytes) for e in self.onward[node]), *((e, 0) for e in self.free[node])):
                if so_far + price < costs.get(edge.target, 1 << 62):
                    costs[edge.target], came[edge.target] = so_far + price, edge
                    heapq.heappush(queue, (so_far + price, next(order), edge.target))
        return None

    def behind(self, target: int) -> list[Edge]:
        """All edges that `target` can be reached over, from wherever."""
        found, stack, seen = [], [target], {target}
        while stack:
            for edge in self.into[stack.pop()]:
                found.append(edge)
                if edge.base not in seen:
                    seen.add(edge.base)
                    stack.append(edge.base)
        return found


def _back(came: dict[int, Edge], node: int) -> Iterable[Edge]:
    while node in came:
        yield came[node]
        node = came[node].base


def cheapest_path(target: int, edges: Iterable[Edge], start: Collection[int] = ()) -> tuple[Edge, ...] | None:
    """The edges of fewest bytes to `target`, last one first, from nothing or from a version in `start`; None: there is no way."""
    search = _Search(tuple(edges), frozenset())
    search.reach(0, *start)
    path = () if target in search.reached else search.cheapest(target)
    return None if path is None else tuple(path)


def chains(stays: Collection[int], edges: Iterable[Edge]) -> Chains:
    """What the versions in `stays` need of `edges`, whose targets may stay or go."""
    stays = frozenset(stays)
    search = _Search(tuple(edges), stays)
    search.reach(0)
    paths: dict[int, tuple[Edge, ...]] = {}
    broken = []
    for version in sorted(stays):
        if version in search.reached:
            continue
        path = search.cheapest(version)
        if path is None:
            broken.append(version)
            path = search.behind(version)
        else:
            search.reach(*(edge.target for edge in path))
        paths[version] = tuple(edge for edge in path if edge.target not in stays)
    return Chains(paths, tuple(broken))
