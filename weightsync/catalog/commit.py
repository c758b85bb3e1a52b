"""Committing a version.

    number = next_number(claim)          the first above the highest committed one that has no manifest
    plan = plan_commit(claim, new)       signs manifest, payload and log record; writes nothing
    ... upload plan.objects and all that they name, in any order; wait until all stand ...
    claim = finish_commit(claim, plan)   swaps the head: that is the commit

A number whose manifest is taken by other bytes is void: plan again with the next one.
"""

from contextlib import suppress

from weightsync.catalog.boundary import compacted, read_boundary
from weightsync.catalog.context import Context
from weightsync.catalog.leases import drop_lease, put_lease
from weightsync.catalog.move_writer import MoveWriter
from weightsync.catalog.read import Reader
from weightsync.catalog.retract import Retractor
from weightsync.catalog.signing import next_move, sealed
from weightsync.catalog.values import Change, Claim, CommitPlan, NewVersion, VersionRecord
from weightsync.errors import Invalid, NotFound, Unavailable, WeightsyncError
from weightsync.format.keys import LATEST
from weightsync.format.operators import Boundary
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Form, Manifest, Payload
from weightsync.trust import Role

FORK_LEASE_MS = 3_600_000
MAX_VOID_NUMBERS = 10_000  # looked past for one version: more of them are not the traces of failed publishes


class Committer:
    """Commits to one run."""

    def __init__(self, ctx: Context, reader: Reader, writer: MoveWriter, retractor: Retractor) -> None:
        self._ctx = ctx
        self._reader = reader
        self._writer = writer
        self._retractor = retractor
        self._looked: tuple[str, Boundary | None] = ("", None)  # digest of the head, and the boundary as it was read after it

    def next_number(self, claim: Claim) -> int:
        """The first number above the highest committed one that nobody has used and that is not being collected."""
        boundary, _ = read_boundary(self._ctx)
        self._looked = (claim.head.digest, boundary)
        first = claim.head.move.highest + 1
        for number in range(first, first + MAX_VOID_NUMBERS):
            if (boundary is None or not boundary.hit(number)) and not self._taken(number):
                return number
        raise Unavailable(
            f"run {self._ctx.run!r} has manifests for all of {first} to {first + MAX_VOID_NUMBERS - 1}, none of them committed",
            remedy="look for who writes to the store",
        )

    def _taken(self, number: int) -> bool:
        try:
            self._ctx.store.stat(self._ctx.keys.manifest(number))
        except NotFound:
            return False
        return True

    def plan(self, claim: Claim, new: NewVersion) -> CommitPlan:
        """The signed records of `new`. Pure but for the clock and the write id. Raises `Invalid`, and `Denied` without a publisher key."""
        _check(claim, new)
        manifest = self._manifest(claim, new)
        signed = sealed(
            self._ctx, manifest.to_body, Role.PUBLISHER, lambda e: Manifest.from_envelope(e, run=self._ctx.run, version=new.number)
        )
        record = VersionRecord(manifest, VersionRef(new.number, signed.digest), len(signed.data))
        payload = Payload(
            self._ctx.run, new.form, claim.writer, record.ref, new.base, new.shards, new.changed_lanes, created_ms=manifest.created_ms
        )
        reached = sealed(self._ctx, payload.to_body, Role.PUBLISHER, lambda e: Payload.from_envelope(e, run=self._ctx.run))
        why = "publish" if new.step is None else f"publish step {new.step}"
        ref = Ref(signed.digest, len(signed.data))
        change = Change(LATEST, claim.epoch, new.number, ref, new.number, claim.who, why, new.expires_ms)
        move, logged = next_move(self._ctx, claim.head, change)
        keys = self._ctx.keys
        objects = (
            (keys.manifest(new.number), signed.data),
            (keys.payload(new.number, payload.base_version, claim.writer), reached.data),
            (keys.log(LATEST, move.sequence, move.write_id), logged.data),
        )
        return CommitPlan(record, payload, move, logged, objects)

    def _manifest(self, claim: Claim, new: NewVersion) -> Manifest:
        return Manifest(
            run=self._ctx.run,
            version=new.number,
            parent=new.parent,
            epoch=claim.epoch,
            writer=claim.writer,
            base=new.base.version if new.base else 0,
            step=new.step,
            layout=new.layout,
            root=new.root,
            digests=new.digests,
            files=new.files,
            checkpoint_bytes=new.checkpoint_bytes,
            payload_bytes=sum(shard.nbytes for shard in new.shards),
            changed_lanes=new.changed_lanes,
            created_ms=self._ctx.now_ms(),
            note=new.note,
        )

    def finish(self, claim: Claim, plan: CommitPlan) -> Claim:
        """Swaps the head to `plan`, all of whose objects stand; the claim to go on with.

        Raises `Fenced`, `Conflict`, `Compacted` when what it builds on is being collected (the head is moved on first), and
        `OutcomeUnknown` when the store stopped answering: the same call may be made again and settles it.
        """
        base = plan.payload.base_version
        self._look_before(claim, base)
        fork = base not in (0, claim.head.move.version)
        if fork:  # nothing else keeps an older base until the version on it is committed
            put_lease(self._ctx, self._reader, f"commit-{claim.epoch}", base, self._ctx.now_ms() + FORK_LEASE_MS)
        head = self._writer.swap(claim.head, plan.move, plan.envelope)
        # The version that was at the head may be marked from now on: until the swap it was kept, from then on its objects are, for ours.
        # A head moved onto a version that was marked already is one whose mover is about to take it back: the look before refuses that.
        self._retractor.check(LATEST, plan.ref.version, claim.who, *((base,) if fork else ()))
        if fork:
            with suppress(WeightsyncError):  # it expires by itself
                drop_lease(self._ctx, f"commit-{claim.epoch}", base)
        return Claim(claim.epoch, head, claim.who)

    def _look_before(self, claim: Claim, base: int) -> None:
        """Raises `Compacted` when the base is being collected. For the version at the head, a look since it is there will do."""
        head, boundary = self._looked
        if base and (head != claim.head.digest or base != claim.head.move.version):
            boundary, _ = read_boundary(self._ctx)
        if not base or boundary is None or not boundary.hit(base):
            return
        now = self._reader.head(LATEST)
        if now is None or now.digest == claim.head.digest:  # else the swap is lost anyway, and says to whom
            raise compacted(self._ctx, base)


def _check(claim: Claim, new: NewVersion) -> None:
    if new.number <= claim.head.move.highest:
        raise Invalid(f"version {new.number} is not above the highest committed one, {claim.head.move.highest}", remedy="take next_number")
    if new.parent is not None and new.parent.version > claim.head.move.highest:
        raise Invalid(f"version {new.number} cannot grow from {new.parent.version}, which was not committed")
    if new.form is Form.FOLD or (new.form is Form.SNAPSHOT) != (new.base is None):
        raise Invalid(f"the first payload of a version is a delta from its parent or a snapshot, not a {new.form.value}")
    if new.base is not None and new.base != new.parent:
        raise Invalid(f"a delta of version {new.number} must start from its parent")
