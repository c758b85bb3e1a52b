"""The cheapest way from what is held to the version wanted.

Versions are nodes, payloads edges, bytes to download their length; the search runs backwards from the version wanted, so it reads the
records of no more versions than a cheaper way could pass through, and ends at a version that is held, or can be made from it without the
network, or at nothing (a snapshot's start).
"""

import heapq
import logging
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count

from weightsync.catalog import Catalog, VersionRecord
from weightsync.catalog.ways import Ways
from weightsync.errors import Compacted, Unavailable, WeightsyncError
from weightsync.format.refs import VersionRef
from weightsync.format.versions import Form, Payload

_log = logging.getLogger(__name__)
_READERS = 16
_CLEARLY_CHEAP = 4  # a delta of less than this part of the checkpoint needs no comparison

Bytes = Callable[[Payload], int]  # to download for a payload


@dataclass(frozen=True)
class Path:
    """`steps` lead from `start` (None: from nothing) to `want`; `records` are the versions after each step.

    `start` is `have`, or a version that can be made from it on this host.
    """

    have: VersionRef | None
    want: VersionRef
    steps: tuple[Payload, ...]
    records: tuple[VersionRecord, ...]
    start: VersionRef | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the steps: shards, and the leaves of each version passed."""
        return sum(cost(payload, record) for payload, record in zip(self.steps, self.records, strict=True))

    @property
    def starts_fresh(self) -> bool:
        """Whether it begins with a snapshot, so that what is held does not matter."""
        return bool(self.steps) and self.steps[0].form is Form.SNAPSHOT

    @property
    def goes_back(self) -> bool:
        """Whether its first part is made on this host, from older versions kept there."""
        return self.start is not None and self.start != self.have

    def explain(self) -> str:
        """One line for people."""
        words = [f"{step.form.value} to {step.target.version} ({step.nbytes:,} bytes)" for step in self.steps]
        if self.goes_back and self.start is not None:
            words.insert(0, f"on this host to {self.start.version}")
        if not words:
            return f"version {self.want.version} is held already"
        start = "nothing" if self.starts_fresh or self.have is None else f"version {self.have.version}"
        return f"from {start}: {', '.join(words)}"


def cost(payload: Payload, record: VersionRecord) -> int:
    """Bytes to download for one step."""
    return payload.nbytes + record.manifest.digests.nbytes


@dataclass
class _Search:
    """Cheapest known continuation of each node; None is having nothing."""

    ways: Ways
    want: VersionRecord
    avoid: Container[Payload]
    bytes_of: Bytes
    costs: dict[VersionRef | None, int] = field(default_factory=dict)
    onward: dict[VersionRef | None, Payload] = field(default_factory=dict)
    failures: list[WeightsyncError] = field(default_factory=list)

    def edges(self, node: VersionRef) -> list[Payload]:
        """Ways into `node`; none, with the reason noted, where its records cannot be used."""
        first = (self.want.manifest.base, self.want.manifest.writer) if node == self.want.ref else None
        try:
            return [payload for payload in self.ways.into(node, first) if payload not in self.avoid]
        except WeightsyncError as error:
            _log.info("no path through version %d: %s", node.version, error)
            self.failures.append(error)
            return []

    def run(self, goals: Container[VersionRef]) -> tuple[VersionRef | None, bool]:
        """(node that the cheapest path starts from, whether there is one)."""
        # All versions of a chain have one layout, so that their leaves take the same bytes.
        each, order = self.want.manifest.digests.nbytes, count()  # ties: first come, first served
        self.costs = {self.want.ref: 0}
        queue: list[tuple[int, int, VersionRef | None]] = [(0, next(order), self.want.ref)]
        settled: set[VersionRef | None] = set()
        while queue:
            so_far, _, node = heapq.heappop(queue)
            if node is None or node in goals:
                return node, True
            if node in settled:
                continue
            settled.add(node)
            for payload in self.edges(node):
                total = so_far + each + self.bytes_of(payload)
                if payload.base not in self.costs or total < self.costs[payload.base]:
                    self.costs[payload.base] = total
                    self.onward[payload.base] = payload
                    heapq.heappush(queue, (total, next(order), payload.base))
        return None, False

    def steps(self, node: VersionRef | None) -> tuple[Payload, ...]:
        """The payloads from a node to the version wanted."""
        found: list[Payload] = []
        while node != self.want.ref:
            found.append(self.onward[node])
            node = found[-1].target
        return tuple(found)


def find_path(
    catalog: Catalog,
    have: VersionRef | None,
    want: VersionRecord,
    *,
    near: Container[VersionRef] = (),
    avoid: Container[Payload] = (),
    bytes_of: Bytes | None = None,
) -> Path:
    """The path of fewest bytes, without the payloads in `avoid`. A `have` that leads nowhere is ignored.

    `near`: versions that can be made from `have` at no cost. `bytes_of`: what a payload costs here, if not all of its bytes.
    Raises, when there is none, `Compacted` if something on the way was collected, else what stood in the way.
    """
    goals = _Goals(have, near)
    if want.ref in goals:
        return Path(have, want.ref, (), (), want.ref)
    direct = _direct(catalog, goals, want, avoid)
    if direct is not None:
        return Path(have, want.ref, (direct,), (want,), direct.base)
    refused: list[Payload] = []
    failures: list[WeightsyncError] = []
    for thorough in (False, True):
        with catalog.ways(thorough=thorough) as ways:
            while True:
                search = _Search(ways, want, _Either(avoid, refused), bytes_of or (lambda payload: payload.nbytes))
                start, found = search.run(goals)
                failures += search.failures
                if not found:
                    break
                steps = search.steps(start)
                records = _records(catalog, want, steps, failures)
                bad = [step for step, record in zip(steps, records, strict=True) if record is None]
                if not bad:
                    return Path(have, want.ref, steps, tuple(record for record in records if record is not None), start)
                refused += bad
    raise _no_path(catalog, failures, want)


@dataclass(frozen=True)
class _Goals:
    have: VersionRef | None
    near: Container[VersionRef]

    def __contains__(self, node: object) -> bool:
        return node is not None and (node == self.have or node in self.near)


@dataclass(frozen=True)
class _Either:
    one: Container[Payload]
    other: Container[Payload]

    def __contains__(self, payload: object) -> bool:
        return payload in self.one or payload in self.other


def _direct(catalog: Catalog, goals: Container[VersionRef], want: VersionRecord, avoid: Container[Payload]) -> Payload | None:
    """The version's own delta where it starts from what is at hand: the way of who follows step by step, found with one read."""
    manifest = want.manifest
    if manifest.parent is None or manifest.base != manifest.parent.version or manifest.parent not in goals:
        return None
    if manifest.payload_bytes * _CLEARLY_CHEAP > manifest.checkpoint_bytes:
        return None
    try:
        payload = catalog.payload(want, manifest.base, manifest.writer)
    except WeightsyncError as error:
        _log.info("looking for another path: %s", error)
        return None
    return payload if payload.base == manifest.parent and payload not in avoid else None


def _records(
    catalog: Catalog, want: VersionRecord, steps: tuple[Payload, ...], failures: list[WeightsyncError]
) -> list[VersionRecord | None]:
    def read(step: Payload) -> VersionRecord | None:
        if step.target == want.ref:
            return want
        try:
            return catalog.manifest_of(step.target.version, step.target.manifest)
        except WeightsyncError as error:
            failures.append(error)
            return None

    if len(steps) == 1:
        return [want]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="weightsync-path") as pool:
        return list(pool.map(read, steps))


def _no_path(catalog: Catalog, failures: list[WeightsyncError], want: VersionRecord) -> WeightsyncError:
    collected = [error for error in failures if isinstance(error, Compacted)]
    if collected:
        try:
            catalog.check_kept(want.ref.version)
        except Compacted as error:  # with the way on
            return error
    # A version that stays has a chain that stays: what was lost on it says more than what was collected beside it.
    told = [error for error in failures if error not in collected] or failures
    if told:
        return told[0]
    return Unavailable(
        f"no path leads to version {want.ref.version}: it has no usable payload",
        remedy="retry; if it stays so, take the newest version, or have a snapshot published",
    )
