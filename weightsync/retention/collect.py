"""The collector. Runs beside publishers, operators and readers; may be killed anywhere and run again.

    survey -> mark (swap the boundary) -> survey again, withdraw -> condemn (swap) -> delete what the boundary gives up

A mark that is younger than the grace time waits for a later run. What may be deleted follows from the boundary alone, and a boundary never
takes back what it gave up; so it does not matter when a deletion happens, how often, or by whom. What must stay follows from it as well:
the payloads of condemned versions that a standing version's chain needs are `held`. Two collectors exclude each other by the boundary's
tag, between reading and writing.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from weightsync.catalog import Catalog
from weightsync.errors import Compacted, Conflict, Corrupt, Denied, Unavailable
from weightsync.failpoints import failpoint
from weightsync.format.keys import version_name
from weightsync.format.operators import Boundary
from weightsync.replica.fetch import ShardSource
from weightsync.replica.replica import Replica
from weightsync.replica.update import update
from weightsync.retention import plan
from weightsync.retention.policy import Policy, decide
from weightsync.retention.snapshot import write_snapshot
from weightsync.retention.survey import THREADS, Survey, Surveyor
from weightsync.retention.uploads import abort_stale
from weightsync.trust import Role

logger = logging.getLogger(__name__)

Scratch = Callable[[int], AbstractContextManager[Replica]]  # an empty replica with room for so many bytes
ATTEMPTS = 5  # while other collectors are faster


@dataclass(frozen=True)
class Outcome:
    """What a run did, or (`dry`) would have done.

    `kept`: versions that stay, and why. `waiting`: marked versions, and since when (ms). `condemned`: those of this run. `held`: condemned
    versions some of whose objects a chain still needs, and the version that needs them. `broken`: standing versions that cannot be rebuilt.
    """

    dry: bool
    kept: dict[int, tuple[str, ...]]
    waiting: dict[int, int]
    condemned: tuple[int, ...]
    gone: tuple[tuple[int, int], ...]
    held: dict[int, int]
    held_bytes: int
    leftovers: tuple[str, ...]
    withdrawn: tuple[str, ...]
    broken: tuple[int, ...]
    snapshot: tuple[int, int] | None  # version, bytes
    objects: int
    nbytes: int
    uploads: int = 0
    notes: tuple[str, ...] = ()


@dataclass
class _Run:
    """What is known in the middle of a run."""

    boundary: Boundary
    etag: str | None
    now_ms: int
    survey: Survey
    kept: dict[int, tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    snapshot: tuple[int, int] | None = None


class Collector:
    """Collects one run by one policy. `scratch`: where a version is rebuilt for a snapshot; None: no snapshots are written."""

    def __init__(self, catalog: Catalog, policy: Policy, *, scratch: Scratch | None = None, threads: int = THREADS) -> None:
        self._catalog, self._policy, self._scratch, self._threads = catalog, policy, scratch, threads
        self._surveyor = Surveyor(catalog, threads=threads)

    def run(self, *, dry: bool = False) -> Outcome:
        """One collection. With `dry` nothing is written or deleted: the outcome says what would be.

        Raises `NotFound` before the first publisher, `Corrupt` where heads or history are damaged (then nothing is collected), `Conflict`
        when other collectors were faster again and again, `Unavailable`.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._once(dry=dry)
            except Conflict as error:
                logger.info("starting over: %s", error)
        return self._once(dry=dry)

    def _once(self, *, dry: bool) -> Outcome:
        run = self._look()
        before = run.boundary
        if self._frees_now(run):
            self._shorten(run, dry=dry)
        run.boundary = plan.marked(run.boundary, run.survey, run.kept, run.now_ms)
        if not dry:
            self._mark(run, before)
            run = self._look_again(run)
        sentence = plan.condemned(run.boundary, run.survey, run.kept, now_ms=run.now_ms, grace_ms=self._policy.grace_ms)
        after = self._with_policy(sentence.boundary, run.survey)
        if not dry:
            self._condemn(run, after)
        names = plan.deletable(after, run.survey)
        objects, nbytes = self._delete(after, run.survey, names, dry=dry)
        uploads = 0 if dry else self._abort_uploads(run, after)
        return _outcome(run, before, sentence, dry=dry, objects=objects, nbytes=nbytes, uploads=uploads)

    # ---------------------------------------------------------------------------------------------------------- looking

    def _look(self) -> _Run:
        found, etag = self._catalog.boundary()
        boundary = found or Boundary(self._catalog.keys.run, self._catalog.new_id())
        survey = self._surveyor.take(boundary)
        now_ms = int(self._catalog.clock.now_s() * 1000)
        return _Run(boundary, etag, now_ms, survey, self._decide(survey, boundary, now_ms))

    def _look_again(self, run: _Run) -> _Run:
        """Everything but the boundary, which is our own and was not changed since, or the next swap fails."""
        survey = self._surveyor.take(run.boundary)
        now_ms = max(run.now_ms, int(self._catalog.clock.now_s() * 1000))
        return replace(run, survey=survey, now_ms=now_ms, kept=self._decide(survey, run.boundary, now_ms))

    def _decide(self, survey: Survey, boundary: Boundary, now_ms: int) -> dict[int, tuple[str, ...]]:
        gone = {version for version in survey.committed if boundary.condemned(version)}
        return decide(self._policy, survey.since_ms, survey.wishes, now_ms, gone=gone)

    # ---------------------------------------------------------------------------------------------------------- writing

    def _with_policy(self, boundary: Boundary, survey: Survey) -> Boundary:
        """What was seen goes into the boundary, so that the next run looks for it whatever LIST shows then."""
        seen = {"channels": sorted(survey.wishes.channels), "pins": sorted({pin.version for pin in survey.wishes.pins})}
        return replace(boundary, policy={**self._policy.to_body(), **seen})

    def _mark(self, run: _Run, before: Boundary) -> None:
        run.boundary = self._with_policy(run.boundary, run.survey)
        if (run.boundary.marked, run.boundary.policy) != (before.marked, before.policy) or run.etag is None:
            run.boundary, run.etag = self._catalog.swap_boundary(run.boundary, run.etag)
        failpoint("gc.marked")

    def _condemn(self, run: _Run, after: Boundary) -> None:
        if replace(after, write_id=run.boundary.write_id) != run.boundary:
            self._catalog.swap_boundary(after, run.etag)
        elif self._catalog.boundary()[1] != run.etag:
            raise Conflict("another collector has changed the boundary meanwhile: what was seen may be gone", remedy="run it again")
        failpoint("gc.condemned")

    def _delete(self, after: Boundary, survey: Survey, names: list[str], *, dry: bool) -> tuple[int, int]:
        """Deletes the objects of `names`; how many, and their bytes."""
        keys = [stat for name in names for stat in survey.objects[name]]
        for key in () if dry else (*(stat.key for stat in keys), *self._vain(after, survey)):
            failpoint("gc.delete")
            self._catalog.remove(key)
        return len(keys), sum(stat.size_bytes for stat in keys)

    def _vain(self, after: Boundary, survey: Survey) -> list[str]:
        """Pins and leases of condemned versions: they were too late, and whoever wrote them is told so, if still alive."""
        keys = self._catalog.keys
        pins = [keys.pin(pin.version) for pin in survey.wishes.pins if after.condemned(pin.version)]
        return pins + [keys.lease(lease.holder) for lease in survey.wishes.leases if after.condemned(lease.version)]

    def _abort_uploads(self, run: _Run, after: Boundary) -> int:
        catalog = self._catalog
        before_s = (run.now_ms - self._policy.grace_ms) / 1000
        return abort_stale(catalog.store, catalog.keys, after, epoch=run.survey.head.move.epoch, before_s=before_s, now_s=run.now_ms / 1000)

    # --------------------------------------------------------------------------------------------------------- shortening

    def _frees_now(self, run: _Run) -> bool:
        """Whether this run condemns something, or something is held from earlier ones."""
        names = plan.unwanted(run.boundary, run.survey, run.kept)
        due = any(run.boundary.marked.get(name, run.now_ms) + self._policy.grace_ms <= run.now_ms for name in names)
        return due or bool(run.boundary.held)

    def _shorten(self, run: _Run, *, dry: bool) -> None:
        """Writes a snapshot where that frees more than it costs. Failing to only means that more is kept."""
        found = plan.worthwhile(run.survey, run.kept)
        if found is None:
            return
        version, nbytes = found
        catalog = self._catalog
        if self._scratch is None:
            return
        if not catalog.policy.may_sign(Role.PUBLISHER):
            run.notes.append(
                f"a snapshot of version {version} would free more than it costs, but needs a publisher key: give one with --key"
            )
            return
        if dry:
            run.snapshot = (version, nbytes)
            return
        record = run.survey.records[version]
        try:
            with self._scratch(record.manifest.checkpoint_bytes) as replica:
                update(replica, catalog, record, ShardSource(catalog), clock=catalog.clock)
                run.snapshot = (version, write_snapshot(catalog, record, replica).nbytes)
        except (Compacted, Corrupt, Unavailable, Denied) as error:
            logger.warning("no snapshot of version %d: %s", version, error)
            run.notes.append(f"the snapshot of version {version} failed: {error.message}")
        failpoint("gc.snapshot")


def _outcome(run: _Run, before: Boundary, sentence: plan.Sentence, *, dry: bool, objects: int, nbytes: int, uploads: int) -> Outcome:
    after, survey = sentence.boundary, run.survey
    doomed = set(sentence.doomed)
    held: dict[int, int] = {}
    for version, path in sentence.chains.paths.items():
        for edge in path:
            held.setdefault(edge.target, version)
    named = {version_name(version): version for version in survey.committed}
    return Outcome(
        dry=dry,
        kept=run.kept,
        waiting={named[name]: since for name, since in after.marked.items() if name in named},
        condemned=tuple(sorted(named[name] for name in doomed if name in named)),
        gone=after.versions,
        held=dict(sorted(held.items())),
        held_bytes=sentence.chains.nbytes,
        leftovers=tuple(sorted(name for name in doomed if name not in named)),
        withdrawn=tuple(sorted(name for name in before.marked if name not in after.marked and name not in doomed)),
        broken=sentence.chains.broken,
        snapshot=run.snapshot,
        objects=objects,
        nbytes=nbytes,
        uploads=uploads,
        notes=tuple(run.notes),
    )
