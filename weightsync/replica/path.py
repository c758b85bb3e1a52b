"""The cheapest way from what is held to the version wanted.

Versions are nodes, payloads edges, bytes to download their length; the search runs backwards from the version wanted, so it reads the
records of no more versions than a cheaper way could pass through, and ends at the version held or at nothing (a snapshot's start).
"""

import heapq
import logging
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import count

from weightsync.catalog import Catalog, VersionRecord
from weightsync.errors import Compacted, Unavailable, WeightsyncError
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Form, Payload

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Path:
    """`steps` lead from `have` (None: from nothing) to `want`; `records` are the versions after each step."""

    have: VersionRef | None
    want: VersionRef
    steps: tuple[Payload, ...]
    records: tuple[VersionRecord, ...]

    @property
    def nbytes(self) -> int:
        """Bytes to download: shards, and the leaves of each version passed."""
        return sum(cost(payload, record) for payload, record in zip(self.steps, self.records, strict=True))

    @property
    def starts_fresh(self) -> bool:
        """Whether it begins with a snapshot, so that what is held does not matter."""
        return bool(self.steps) and self.steps[0].form is Form.SNAPSHOT

    def explain(self) -> str:
        """One line for people."""
        if not self.steps:
            return f"version {self.want.version} is held already"
        start = "nothing" if self.starts_fresh or self.have is None else f"version {self.have.version}"
        words = ", ".join(f"{step.form.value} to {step.target.version} ({step.nbytes:,} bytes)" for step in self.steps)
        return f"from {start}: {words}"


def cost(payload: Payload, record: VersionRecord) -> int:
    """Bytes to download for one step."""
    return payload.nbytes + record.manifest.digests.nbytes


@dataclass
class _Search:
    """Cheapest known continuation of each node; None is having nothing."""

    catalog: Catalog
    avoid: Container[Payload]
    costs: dict[VersionRef | None, int] = field(default_factory=dict)
    onward: dict[VersionRef | None, tuple[Payload, VersionRecord]] = field(default_factory=dict)
    failures: list[WeightsyncError] = field(default_factory=list)

    def edges(self, node: VersionRef, known: VersionRecord | None) -> list[tuple[Payload, VersionRecord]]:
        """Ways into `node`; none, with the reason noted, where its records cannot be used."""
        try:
            record = known or self.catalog.manifest_of(node.version, node.manifest)
            return [(payload, record) for payload in self.catalog.payloads(record) if payload not in self.avoid]
        except WeightsyncError as error:
            _log.info("no path through version %d: %s", node.version, error)
            self.failures.append(error)
            return []


def find_path(catalog: Catalog, have: VersionRef | None, want: VersionRecord, *, avoid: Container[Payload] = ()) -> Path:
    """The path of fewest bytes, without the payloads in `avoid`. A `have` that leads nowhere is ignored.

    Raises, when there is none, `Compacted` if something on the way was collected, else what stood in the way.
    """
    search = _Search(catalog, avoid, costs={want.ref: 0})
    order = count()  # ties: first come, first served
    queue: list[tuple[int, int, VersionRef | None]] = [(0, next(order), want.ref)]
    settled: set[VersionRef | None] = set()
    while queue:
        so_far, _, node = heapq.heappop(queue)
        if node is None or node == have:
            return _collect(search, have, want, node)
        if node in settled:
            continue
        settled.add(node)
        for payload, record in search.edges(node, want if node == want.ref else None):
            total = so_far + cost(payload, record)
            if payload.base not in search.costs or total < search.costs[payload.base]:
                search.costs[payload.base] = total
                search.onward[payload.base] = (payload, record)
                heapq.heappush(queue, (total, next(order), payload.base))
    raise _no_path(search, want)


def _collect(search: _Search, have: VersionRef | None, want: VersionRecord, node: VersionRef | None) -> Path:
    steps: list[tuple[Payload, VersionRecord]] = []
    while node != want.ref:
        steps.append(search.onward[node])
        node = steps[-1][0].target
    return Path(have, want.ref, tuple(payload for payload, _ in steps), tuple(record for _, record in steps))


def _no_path(search: _Search, want: VersionRecord) -> WeightsyncError:
    for error in search.failures:
        if isinstance(error, Compacted):
            return error
    if search.failures:
        return search.failures[0]
    return Unavailable(
        f"no path leads to version {want.ref.version}: it has no usable payload",
        remedy="retry; if it stays so, take the newest version, or have a snapshot published",
    )
