"""One run in one store: the only code that changes a store's records, and the only one that reads them.

    catalog = Catalog(open_store(url), "my-run")
    catalog.open_run("my-model")
    claim = catalog.claim(who)
    plan = catalog.plan_commit(claim, NewVersion(number=catalog.next_number(claim), ...))
    ... upload plan.objects and what they name ...
    claim = catalog.finish_commit(claim, plan)
    catalog.move("serving", plan.ref, expected_sequence=None, who=who, why="passed the evaluation")

Every method raises the errors of `weightsync.errors`: `Unavailable` where nothing is known to be wrong, `Corrupt` where bytes are not what
a verified record says. Safe to use from many threads; a `Claim` belongs to one.
"""

from collections.abc import Callable, Iterator

from weightsync.catalog.add_payload import NewPayload, add_payload
from weightsync.catalog.adopt import adopt_head
from weightsync.catalog.boundary import look, missing, read_boundary, swap_boundary
from weightsync.catalog.claim import claim
from weightsync.catalog.commit import Committer
from weightsync.catalog.context import PATIENCE, Context
from weightsync.catalog.foreign_move import ForeignMover, MovePlan
from weightsync.catalog.heads import Conditional, HeadWriter, SingleWriter
from weightsync.catalog.leases import Leases, drop_lease, put_lease
from weightsync.catalog.move import Mover
from weightsync.catalog.move_writer import MoveWriter
from weightsync.catalog.payloads import Payloads
from weightsync.catalog.pins import drop_pin, pins, put_pin
from weightsync.catalog.read import Reader
from weightsync.catalog.renew import renew
from weightsync.catalog.retract import Retractor
from weightsync.catalog.runs import open_run
from weightsync.catalog.values import Claim, CommitPlan, Head, NewVersion, VersionRecord
from weightsync.catalog.ways import Ways
from weightsync.clock import SYSTEM, Clock, jitter, new_write_id
from weightsync.errors import WeightsyncError
from weightsync.format.digests import DigestTable
from weightsync.format.files import FileTable
from weightsync.format.keys import LATEST, RunKeys
from weightsync.format.layout import Layout
from weightsync.format.moves import Move
from weightsync.format.operators import Boundary, Lease, Pin, Run
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Manifest, Payload
from weightsync.store.api import ObjectStore
from weightsync.store.probe import Capability
from weightsync.store.retry import RetryPolicy, retrying
from weightsync.trust import UNSIGNED, Policy


class Catalog:
    """The facade. `new_id` and `jitter` are the randomness, `patience` how long a write is settled before `OutcomeUnknown`."""

    def __init__(
        self,
        store: ObjectStore,
        run: str,
        *,
        policy: Policy = UNSIGNED,
        clock: Clock = SYSTEM,
        single_writer: bool = False,
        capability: Capability | None = None,
        patience: RetryPolicy = PATIENCE,
        new_id: Callable[[], str] = new_write_id,
        jitter: Callable[[float], float] = jitter,
    ) -> None:
        """`capability`: what the store was probed for; None: probed before the first head is written.

        `single_writer`: write heads without conditional writes, where the caller vouches that nobody else writes to this run.
        """
        self.store = store
        self.keys = RunKeys(run)
        self.policy = policy
        self.clock = clock
        heads: HeadWriter = SingleWriter(store) if single_writer else Conditional(store, self.keys.probes, capability)
        self._ctx = Context(store, self.keys, heads, policy, clock, new_id, jitter, patience)
        self._reader = Reader(self._ctx)
        self._payloads = Payloads(self._ctx, self._reader)
        self._writer = MoveWriter(self._ctx, self._reader)
        retractor = Retractor(self._ctx, self._reader, self._writer)
        self._committer = Committer(self._ctx, self._reader, self._writer, retractor)
        self._mover = Mover(self._ctx, self._reader, self._writer, retractor)
        self._leases = Leases(self._ctx)
        self._foreign = ForeignMover(self._ctx, self._reader, self._writer, retractor)

    # ------------------------------------------------------------------------------------------------------------ reading

    def run(self) -> Run:
        """The run's own record. Raises `NotFound`."""
        return self._reader.run()

    def head(self, channel: str = LATEST) -> Head | None:
        """Where `channel` points; None when nobody has moved it yet."""
        return self._reader.head(channel)

    def head_if_changed(self, channel: str, etag: str) -> Head | None:
        """The head, or None while it still has `etag`."""
        return self._reader.head_if_changed(channel, etag)

    def channels(self) -> list[str]:
        """Names of the channels that exist, by LIST: for display."""
        return self._reader.channels()

    def history(self, head: Head, *, down_to: int = 1) -> Iterator[tuple[Move, str]]:
        """(move, digest) from `head` back to sequence `down_to`, newest first, each checked against its successor. Reads when asked."""
        return self._reader.history(head, down_to=down_to)

    def check_logged(self, head: Head) -> None:
        """Raises `Corrupt` unless the log holds the head's own record, which `history` does not read: the next move will need it."""
        self._reader.check_logged(head)

    def committed(self, head: Head | None = None) -> list[VersionRef]:
        """All committed versions, ascending: those in the history of `head` (of `latest`), or of what `latest` is now."""
        return self._reader.committed(head)

    def find(self, version: int) -> VersionRef:
        """The committed version of that number. Raises `NotFound`."""
        return self._reader.find(version)

    def manifest_of(self, version: int, digest: str | None = None) -> VersionRecord:
        """The manifest of a committed version: the one with `digest`, or what `latest`'s history says of that number.

        Raises `NotFound` where it was not committed, `Compacted` where it was collected, `Unavailable` while it is not visible.
        """
        return self._reader.manifest(self._reader.find(version) if digest is None else VersionRef(version, digest))

    def payload(self, record: VersionRecord, base: int, writer: str) -> Payload:
        """One way to reach a version. Raises `Corrupt` when it names other manifests than were committed, `Compacted`, `Unavailable`."""
        return self._payloads.one(record, base, writer)

    def payloads(self, record: VersionRecord) -> list[Payload]:
        """All usable ways to reach a version, its first payload first; more by LIST. Raises the first one's error when there is none."""
        return self._payloads.all(record)

    def ways(self, *, thorough: bool = False) -> Ways:
        """For a search through many versions. See `ways.Ways`."""
        return Ways(self._ctx, self._reader, thorough=thorough)

    def layout(self, ref: Ref) -> Layout:
        """A table of tensors."""
        return self._reader.layout(ref)

    def digests(self, manifest: Manifest, layout: Layout) -> DigestTable:
        """Leaves and sums of a version, which make up its root."""
        return self._reader.digests(manifest, layout)

    def file_table(self, ref: Ref) -> FileTable:
        """A table of files."""
        return self._reader.file_table(ref)

    def file(self, ref: Ref) -> bytes:
        """A small file, or a safetensors header."""
        return self._reader.file(ref)

    def boundary(self) -> tuple[Boundary | None, str | None]:
        """What is marked or condemned, and its etag; (None, None) before the first collection."""
        return read_boundary(self._ctx)

    def check_kept(self, version: int) -> None:
        """Raises `Compacted` when `version` is marked or condemned, even while its objects still serve others."""
        look(self._ctx, version)

    def missing(self, version: int, what: str, name: str = "") -> WeightsyncError:
        """The error to raise when an object that `version` needs is not there: `Compacted`, or `Unavailable` while it is not visible.

        `what` names the object for people; `name` is the payload or leftover it belongs to, as the boundary spells it.
        """
        return missing(self._ctx, version, what, name)

    # ------------------------------------------------------------------------------------------------------------ writing

    def open_run(self, model: str) -> Run:
        """The run, made if it does not exist. Raises `Invalid` when it holds another model; an empty `model` is any."""
        return open_run(self._ctx, self._reader, model)

    def claim(self, who: str) -> Claim:
        """The right to move `latest`; earlier holders are fenced. See `claim.claim`."""
        return claim(self._ctx, self._reader, self._writer, who)

    def next_number(self, claim: Claim) -> int:
        """The number for the next version. See `commit.Committer`."""
        return self._committer.next_number(claim)

    def plan_commit(self, claim: Claim, new: NewVersion) -> CommitPlan:
        """The signed records of `new`; writes nothing."""
        return self._committer.plan(claim, new)

    def finish_commit(self, claim: Claim, plan: CommitPlan) -> Claim:
        """Swaps the head: the commit. Raises `Fenced`, `Conflict`, `Compacted`, `OutcomeUnknown` (repeat the same call to settle it)."""
        return self._committer.finish(claim, plan)

    def move(
        self, channel: str, target: VersionRef | int, *, expected_sequence: int | None, who: str, why: str, expires_ms: int | None = None
    ) -> Head:
        """Promotes or rolls back. See `move.Mover.move`."""
        return self._mover.move(channel, target, expected_sequence=expected_sequence, who=who, why=why, expires_ms=expires_ms)

    def plan_move(
        self, channel: str, target: VersionRef | int, *, expected_sequence: int | None, who: str, why: str, expires_ms: int | None = None
    ) -> MovePlan:
        """The move that `move` would make, signed but not written: for a control plane to swap in."""
        return self._mover.plan(channel, target, expected_sequence=expected_sequence, who=who, why=why, expires_ms=expires_ms)

    def apply_move(self, channel: str, record: bytes, *, expected_sequence: int) -> Head:
        """Swaps in a move that somebody else has made with `plan_move`. Needs no key. See `foreign_move.ForeignMover.apply`."""
        return self._foreign.apply(channel, record, expected_sequence)

    def put_lease(self, holder: str, version: int, expires_ms: int) -> Lease:
        """Keeps a committed version from being collected until `expires_ms`. See `leases.put_lease`."""
        return put_lease(self._ctx, self._reader, holder, version, expires_ms)

    def drop_lease(self, holder: str, version: int) -> None:
        """Gives a lease back; one that is gone is fine."""
        drop_lease(self._ctx, holder, version)

    def leases(self) -> list[Lease]:
        """All leases, expired ones included, by LIST."""
        return self._leases.all()

    def put_pin(self, version: int, *, who: str, why: str) -> Pin:
        """Keeps a committed version from being collected until it is unpinned. See `pins.put_pin`."""
        return put_pin(self._ctx, self._reader, version, who, why)

    def drop_pin(self, version: int) -> None:
        """Unpins. Raises `NotFound` when the version is not pinned."""
        drop_pin(self._ctx, version)

    def pins(self, known: tuple[int, ...] = ()) -> list[Pin]:
        """All pins, by LIST; those of the versions `known` by name."""
        return pins(self._ctx, known)

    def add_payload(self, record: VersionRecord, new: NewPayload) -> Payload:
        """A further way to a committed version, whose shards stand. See `add_payload.add_payload`."""
        return add_payload(self._ctx, record, new)

    def adopt_head(self, channel: str, data: bytes, *, damaged_etag: str | None = None) -> Head:
        """Points a channel where another store's copy of this run has it. See `adopt.adopt_head`."""
        return adopt_head(self._ctx, self._reader, channel, data, damaged_etag=damaged_etag)

    def swap_boundary(self, boundary: Boundary, etag: str | None) -> tuple[Boundary, str]:
        """Replaces what is marked and condemned; only for the collector. See `boundary.swap_boundary`."""
        return swap_boundary(self._ctx, boundary, etag)

    def remove(self, key: str) -> None:
        """Deletes an object that the boundary has given up; a missing one is fine. Only for the collector."""
        ctx = self._ctx
        retrying(lambda: ctx.store.delete(key), policy=ctx.patience, clock=ctx.clock, jitter=ctx.jitter, idempotent=True)

    def new_id(self) -> str:
        """16 hex digits that nobody else will draw."""
        return self._ctx.new_id()

    def renew(self, channel: str, expires_ms: int) -> Head:
        """Keeps a head that expires fresh until `expires_ms`, without a new sequence."""
        return renew(self._ctx, self._reader, channel, expires_ms)
