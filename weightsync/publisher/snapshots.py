"""When a further snapshot pays. Pure: numbers in, a reason out.

Whoever starts from nothing downloads a snapshot and the chain after it. A new snapshot costs its bytes once, and its place; it saves every
such reader the chain. So one is due when the readers expected since the last one would have paid as much for the chain as the next one
costs (who does not know the future does at most twice as badly as who does), when catching up takes too long and a snapshot would help, or
when an operator says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class SnapshotPolicy:
    """`every`: one every so many versions, whatever it costs (0: never; None: when it pays).

    `readers`: hosts that start from nothing, or from a version too old, for each published version. `catch_up_s`: what such a host may take
    to download at `link_bytes_s`. `stored_cost`: what keeping a byte for as long as versions are kept costs, in bytes downloaded.
    """

    every: int | None = None
    readers: float = 0.05
    catch_up_s: float = 300.0
    link_bytes_s: float = 125e6
    stored_cost: float = 0.25


@dataclass(frozen=True)
class ChainFacts:
    """What follows the last snapshot: `versions` of them, `nbytes` to the newest by the cheapest path.

    `paid_bytes`: what one reader at each of those versions would have downloaded beside the snapshot. `snapshot_bytes`: the size of one.
    """

    versions: int
    nbytes: int
    paid_bytes: int
    snapshot_bytes: int


def due(policy: SnapshotPolicy, chain: ChainFacts) -> str:
    """Why a snapshot of the newest version is due; empty when it is not."""
    if policy.every is not None:
        return f"one every {policy.every} versions" if policy.every and chain.versions >= policy.every else ""
    if chain.nbytes <= 0 or chain.snapshot_bytes <= 0:
        return ""
    price = chain.snapshot_bytes * (1.0 + policy.stored_cost)
    paid = policy.readers * chain.paid_bytes
    if paid >= price:
        return f"readers have paid {paid:,.0f} bytes for the chain, one costs {price:,.0f}"
    takes_s = (chain.snapshot_bytes + chain.nbytes) / policy.link_bytes_s
    # Where the snapshot alone takes most of the time there is, a new one helps little until the chain is as long.
    if takes_s > policy.catch_up_s and chain.nbytes >= chain.snapshot_bytes:
        return f"catching up takes {takes_s:.0f} s, {policy.catch_up_s:.0f} are allowed"
    return ""


@dataclass
class Chain:
    """The payloads since the last snapshot, as the publisher knows them."""

    snapshot_bytes: int = 0
    _paid: int = 0
    _versions: list[int] = field(default_factory=list)
    _edges: list[tuple[int, int, int]] = field(default_factory=list)  # base, target, bytes

    def start(self, version: int, nbytes: int) -> None:
        """A snapshot of `version` stands. What follows it already is kept."""
        self.snapshot_bytes = nbytes
        self._versions = [version, *(v for v in self._versions if v > version)]
        self._edges = [edge for edge in self._edges if edge[0] >= version]
        self._paid = sum(self._costs().values())

    def resume(self, snapshot: int, snapshot_bytes: int, version: int, versions: int, nbytes: int) -> None:
        """As it stands in the store: `versions` and `nbytes` lead from the last snapshot to `version`."""
        self._versions, self._edges = [], []
        self.start(snapshot, snapshot_bytes)
        if version != snapshot:
            self._edges.append((snapshot, version, nbytes))
            self._versions += [version] * versions
            self._paid = versions * nbytes // 2  # it has grown evenly, for all that is known

    def add(self, base: int, target: int, nbytes: int) -> None:
        """A delta or a fold stands."""
        self._edges.append((base, target, nbytes))
        if target not in self._versions:
            self._versions.append(target)
            self._paid += self._costs().get(target, 0)

    @property
    def newest_snapshot(self) -> int:
        """The version that the chain starts from; 0 while there is none."""
        return self._versions[0] if self._versions else 0

    def knows(self, version: int) -> bool:
        """Whether it is known what leads to `version`."""
        return version in self._costs()

    def facts(self, version: int) -> ChainFacts:
        """How far `version` is from its snapshot."""
        return ChainFacts(max(0, len(self._versions) - 1), self._costs().get(version, 0), self._paid, self.snapshot_bytes)

    def _costs(self) -> dict[int, int]:
        costs = {self._versions[0]: 0} if self._versions else {}
        for base, target, nbytes in sorted(self._edges, key=lambda edge: edge[1]):
            if base in costs:
                costs[target] = min(costs.get(target, costs[base] + nbytes), costs[base] + nbytes)
        return costs


def fold_base(older: Iterable[int], version: int, span: int) -> int:
    """The version that a fold of `span` versions to `version` starts from; 0: none is due. `older`: ancestors within reach, newest first.

    Folds meet at the first version of each run of `span` numbers, so that they join end to end, also over numbers that are void.
    """
    ancestors = list(older)
    if len(ancestors) < 2 or version // span == ancestors[0] // span:
        return 0
    for place, (here, before) in enumerate(pairwise(ancestors)):
        if here // span != before // span:
            return here if place > 0 else 0
    return ancestors[-1] if len(ancestors) >= max(2, span // 2) else 0
