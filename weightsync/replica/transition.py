"""An image on its way to another version: chunk by chunk, and nothing counts before `finish`.

In place (same layout): decode against the image (nothing is written), journal the old values, write, check the leaf. Otherwise, and where
a snapshot is the start, into a second image beside the first, which stays as it is. `finish` replaces the state file: that is the one
moment at which the replica becomes the new version, for this process and for one that starts after a kill at any byte.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from weightsync.codec import Changes, decode, gather, scatter
from weightsync.errors import Corrupt, Invalid, WeightsyncError
from weightsync.failpoints import failpoint
from weightsync.format.digests import DigestTable
from weightsync.format.dtypes import DType
from weightsync.format.layout import LEAF_BYTES, Chunk, Layout
from weightsync.format.refs import VersionRef
from weightsync.format.root import leaf_digest, root_digest
from weightsync.replica.flips import Flip, flip_over, lanes_of
from weightsync.replica.held import Held, Passage, Place, Settle
from weightsync.replica.image import Image
from weightsync.replica.journal import Journal
from weightsync.replica.state import LAYOUT_PREFIX, STATE, TABLE_PREFIX, State
from weightsync.store.oserrors import from_os_error

_log = logging.getLogger(__name__)


class Transition:
    """Made by `Replica.begin`. `apply` and `fill` may be called from many threads, for distinct chunks.

    Who makes the version meanwhile begins without target and table, hands every chunk's leaf over, and says where it leads with `aim`.
    As a context manager it aborts unless `finish` was reached; abort only when no `apply` is running any more.
    """

    def __init__(
        self,
        place: Place,
        held: Held | None,
        target: VersionRef | None,
        layout: Layout,
        table: DigestTable | None,
        *,
        fresh: bool,
        settle: Settle,
    ) -> None:
        self.layout = layout
        self._place, self._held, self._settle = place, held, settle
        self._target, self._table = target, table
        self._leaf_bytes = LEAF_BYTES[layout.leaf]
        self._lock = threading.Lock()
        self._journal: Journal | None = None
        self._failed = self._closed = False
        self._written: set[str] = set()  # files of the new version, so far unmarked
        self._in_place = not fresh and held is not None and held.layout.digest == layout.digest
        # Space comes first: a layout that no host could hold is refused before its chunks are counted out.
        self.image = held.image if held is not None and self._in_place else Image.create(place.directory, layout)
        self._chunks = layout.chunks
        self._dtypes = [tensor.dtype for tensor in layout.tensors]
        self._filled = bytearray([self._in_place]) * len(self._chunks)
        self._leaves = bytearray(held.table.leaves if held is not None and self._in_place else len(self._chunks) * self._leaf_bytes)
        self._done = bytearray(len(self._chunks))

    @property
    def in_place(self) -> bool:
        """Whether the image served so far is being changed under the journal."""
        return self._in_place

    def aim(self, target: VersionRef, table: DigestTable) -> None:
        """Says where it leads, for who began without knowing: before `finish`."""
        self._target, self._table = target, table

    def apply(self, number: int, frame: bytes | memoryview, leaf: bytes | None = None) -> None:
        """Decodes a frame and makes it the chunk's new bytes; they must have the leaf that the table says (or `leaf`, without one).

        Raises `Corrupt` for a frame that does not decode or leads elsewhere, `NoSpace` when the journal cannot grow, `Conflict` when
        readers do not let go. After any error only `abort` is left.
        """
        with self._writing(number, leaf) as (chunk, dtype, view):
            found = decode(dtype, frame, view, chunk.lanes) if self._filled[number] else self._decode_first(number, frame)
            if not isinstance(found, Changes):
                self._write_whole(number, view, found.data)
                return
            if self._in_place:
                self._journaling().append_changes(number, found.positions, gather(view, found.positions, dtype.lane_bytes))
                failpoint("subscribe.mid_apply")
            scatter(view, found.positions, found.values)

    def fill(self, number: int, data: bytes | memoryview, leaf: bytes | None = None) -> None:
        """As `apply`, from all bytes of the chunk instead of a frame."""
        with self._writing(number, leaf) as (chunk, _, view):
            if len(data) != chunk.nbytes:
                raise Invalid(f"{len(data)} bytes for {chunk.nbytes}")
            self._write_whole(number, view, data)

    def flip(self, number: int, flips: Sequence[Flip]) -> None:
        """As `apply`, from what tells the chunk's state from the wanted one, in one or more steps of which the last must have the leaf."""
        with self._writing(number, None) as (_, dtype, view):
            if not self._in_place:
                raise Invalid("flips lead on from what is held")
            for step in flips:
                if step.positions is None:
                    self._journaling().append_whole(number, view)
                    flip_over(lanes_of(view, dtype.lane_bytes), step)
                else:
                    old = gather(view, step.positions, dtype.lane_bytes)
                    self._journaling().append_changes(number, step.positions, old)
                    failpoint("subscribe.mid_apply")
                    scatter(view, step.positions, old ^ step.bits)

    def advance(self, target: VersionRef, table: DigestTable) -> None:
        """Ends one step of a path, checking that it is complete, and begins the next, to `target`. Nothing is marked in between."""
        self.check_complete()
        self._target, self._table = target, table
        self._done = bytearray(len(self._chunks))

    def finish(self, *, remember: bool = True) -> None:
        """Makes the replica the target version, for good. Raises `Corrupt` when chunks are not what its table says, `NoSpace`.

        After an error the old version is still the one held; call `abort`. `remember`: the way back is to be kept (`Replica.remember`).
        """
        target, contents = self.check_complete()
        layout, directory = self.layout, self._place.directory
        table_bytes = contents.to_bytes(layout)
        table = blake3(table_bytes).hexdigest()
        state = State(target, self.image.name, layout.digest, table, root_digest(layout, contents.leaves))
        self._written = set(state.files)
        if self._held is None or self._held.state.layout != layout.digest:
            directory.replace(LAYOUT_PREFIX + layout.digest, layout.to_bytes())
        directory.replace(TABLE_PREFIX + table, table_bytes)
        directory.replace(STATE, state.to_bytes(), before=lambda: failpoint("subscribe.before_mark"))
        # From here on the new version is the one held, whatever happens to what is left over of the old one.
        self._closed = True
        passage = self._passage(state) if remember and self._place.past.limits.versions else None
        self._settle(Held(state, layout, contents, self.image), "", passage)
        try:
            failpoint("subscribe.marked")
            self._end_journal(discard=True)
            self._remove_old(state, passage)
        except (WeightsyncError, OSError) as error:
            _log.warning("replica %s: left-overs of the update stay until the next start: %s", directory.path, error)

    def abort(self) -> None:
        """Goes back to the version held before; harmless when repeated or after `finish`.

        Raises `Corrupt` when that fails; then the replica holds nothing and says why.
        """
        if self._closed:
            return
        self._closed = True
        if not self._in_place:
            self.image.close()
            self._written.add(self.image.name)
        try:
            self._roll_back()
        except (WeightsyncError, OSError) as error:
            self._end_journal(discard=False)
            self.image.close()
            self._settle(None, f"rolling back failed: {error}", None)
            raise
        self._end_journal(discard=True)
        self._settle(self._held, "", None)
        for name in self._written - (self._held.state.files if self._held else frozenset()) - self._place.past.files:
            self._place.directory.remove(name)

    @contextmanager
    def _writing(self, number: int, leaf: bytes | None) -> Iterator[tuple[Chunk, DType, memoryview]]:
        chunk = self._take(number)
        complete = False
        try:
            view = self.image.data[chunk.offset : chunk.offset + chunk.nbytes]
            yield chunk, self._dtypes[chunk.tensor], view
            self._check(number, view, leaf)
            complete = True
        except (WeightsyncError, OSError) as error:
            raise self._named(number, error) from error
        finally:
            if not complete:
                self._failed = True

    def _take(self, number: int) -> Chunk:
        if self._failed or self._closed:
            raise Invalid("this transition failed or has ended", remedy="abort it and begin another")
        if not 0 <= number < len(self._chunks) or self._done[number]:
            self._failed = True
            raise Corrupt(f"chunk {number} of {len(self._chunks)} does not exist or came twice", remedy="fetch the payload again")
        self._done[number] = 1
        return self._chunks[number]

    def _named(self, number: int, error: WeightsyncError | OSError) -> WeightsyncError:
        where = f"{self._name()}, {self.image.describe(number)}"
        if isinstance(error, OSError):
            return from_os_error(error, where)
        return type(error)(f"{where}: {error.message}", remedy=error.remedy)

    def _decode_first(self, number: int, frame: bytes | memoryview) -> Changes | NDArray[np.uint8]:
        chunk = self._chunks[number]
        try:
            return decode(self._dtypes[chunk.tensor], frame, None, chunk.lanes)
        except Invalid as error:
            raise Corrupt(f"a snapshot has a frame that needs a base: {error.message}") from error

    def _write_whole(self, number: int, view: memoryview, data: bytes | memoryview) -> None:
        if self._in_place:
            self._journaling().append_whole(number, view)
            failpoint("subscribe.mid_apply")
        view[:] = data

    def _name(self) -> str:
        return f"version {self._target.version}" if self._target else "the next version"

    def _check(self, number: int, view: memoryview, expected: bytes | None) -> None:
        place = slice(number * self._leaf_bytes, (number + 1) * self._leaf_bytes)
        if self._table is not None:
            expected = self._table.leaves[place]
        leaf = leaf_digest(self.layout.leaf, view)
        if leaf != expected:
            raise Corrupt("the bytes made do not have the leaf that the version states", remedy="run `weightsync verify`")
        self._leaves[place] = leaf
        self._filled[number] = 1

    def _journaling(self) -> Journal:
        if self._journal is None:
            with self._lock:
                if self._journal is None:
                    self._journal = self._open_journal()
                    failpoint("subscribe.journal_open")
        return self._journal

    def _open_journal(self) -> Journal:
        if self._held is None:
            raise Invalid("nothing to go back to")
        self._place.readers.acquire(exclusive=True, wait_s=self._place.readers_wait_s)
        try:
            return Journal.create(self._place.directory, self._held.state.digest)
        except BaseException:
            self._place.readers.release()
            raise

    def check_complete(self) -> tuple[VersionRef, DigestTable]:
        """Where it leads, if every chunk is there. Raises `Corrupt` naming one that is not, `Invalid`."""
        if self._failed or self._closed or self._target is None or self._table is None:
            raise Invalid("this transition failed, has ended or leads nowhere yet", remedy="abort it and begin another")
        if self._leaves != self._table.leaves:
            self._failed = True
            raise Corrupt(
                f"{self._name()}: no frame came for {self.image.describe(self._first_difference(self._table))}, which it changes",
                remedy="fetch the payload again; if it stays, run `weightsync verify`",
            )
        return self._target, self._table

    def _first_difference(self, table: DigestTable) -> int:
        size = self._leaf_bytes
        return next(n for n in range(len(self._chunks)) if self._leaves[n * size : (n + 1) * size] != table.leaf(self.layout, n))

    def _roll_back(self) -> None:
        if self._journal is None or self._held is None:
            return
        touched = self._journal.undo(self.image)
        for number in touched:
            if self.image.leaf(number) != self._held.table.leaf(self.layout, number):
                raise Corrupt(f"{self.image.describe(number)} did not go back to version {self._held.state.version.version}")

    def _end_journal(self, *, discard: bool) -> None:
        if self._journal is None:
            return
        if discard:
            self._journal.discard()
        else:
            self._journal.close()
        self._journal = None
        self._place.readers.release()

    def _passage(self, state: State) -> Passage | None:
        """What to learn the way back from; the journal is handed over then."""
        if self._held is None or not self._in_place or self._held.state.version == state.version:
            return None
        journal, self._journal = self._journal, None
        if journal is not None:
            self._place.readers.release()
        return Passage(journal, self._held.state, state)

    def _remove_old(self, state: State, passage: Passage | None) -> None:
        if self._held is None:
            return
        if not self._in_place:
            self._held.image.close()
        for name in self._held.state.files - state.files - (passage.older.files if passage else frozenset()) - self._place.past.files:
            self._place.directory.remove(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abort()
