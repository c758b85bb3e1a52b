"""A host's verified copy of one version, which survives kills.

    with Replica(Path("/dev/shm/weights")) as replica:
        if replica.version is None: print(replica.doubt)
        with replica.begin(target, layout, table) as transition:
            transition.apply(number, frame)      # from many threads
            transition.finish()

Opening takes the writer's lock, undoes what a killed process left half done, and hashes the whole image (memory speed): it holds a version
only if every leaf is the recorded one. Otherwise (a flipped bit, pages lost with the power, a damaged record) it holds nothing, says why in
`doubt`, and frees the space; the caller fills it again from its cache of verified objects or the store.
"""

import logging
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from blake3 import blake3

from weightsync.clock import SYSTEM, Clock
from weightsync.codec import dispatch_level
from weightsync.errors import Corrupt, Invalid, WeightsyncError
from weightsync.format.digests import DigestTable
from weightsync.format.layout import Layout
from weightsync.format.limits import MAX_DIGESTS_BYTES, MAX_LAYOUT_BYTES
from weightsync.format.refs import VersionRef
from weightsync.replica.directory import TEMPORARY, PrivateDirectory
from weightsync.replica.held import Held, Passage, Place
from weightsync.replica.image import Image
from weightsync.replica.journal import Journal
from weightsync.replica.locks import ReadersLock, WriterLock
from weightsync.replica.parallel import Workers
from weightsync.replica.past import NOTHING_PAST, Past, PastLimits
from weightsync.replica.remember import flips_of
from weightsync.replica.state import CHANGE_PREFIX, IMAGE_PREFIX, JOURNAL, LAYOUT_PREFIX, MAX_STATE_BYTES, STATE, TABLE_PREFIX, State
from weightsync.replica.transition import Transition

_log = logging.getLogger(__name__)
_OURS = (IMAGE_PREFIX, LAYOUT_PREFIX, TABLE_PREFIX, CHANGE_PREFIX, TEMPORARY)


class Replica:
    """The one writer of `directory`; its methods are called from one thread, a transition's from many.

    `threads` hash and decode (None: one per processor); `readers_wait_s` is how long a change in place waits for readers to let go; `past`:
    how much of older versions is kept, to go back to them without the network.
    Raises `Conflict` (in use), `Denied`, `Invalid` (not a private directory of plain files).
    """

    def __init__(
        self,
        directory: Path,
        *,
        threads: int | None = None,
        readers_wait_s: float = 60.0,
        past: PastLimits = NOTHING_PAST,
        clock: Clock = SYSTEM,
    ) -> None:
        dispatch_level()  # a kernel that cannot be had is an error of its own, not one of the frames
        self.doubt = "nothing was there"
        self._held: Held | None = None
        self._transition: Transition | None = None
        self._passage: Passage | None = None
        self._closed = False
        self._directory = PrivateDirectory(directory)
        try:
            self._lock = WriterLock(self._directory)
        except BaseException:
            self._directory.close()
            raise
        try:
            self.workers = Workers(threads or len(os.sched_getaffinity(0)))
            self.past = Past(self._directory, past)  # older versions within reach
            self._place = Place(self._directory, ReadersLock(self._directory, clock), readers_wait_s, self.past)
            self._load()
        except BaseException:
            self._lock.close()
            self._directory.close()
            raise

    @property
    def path(self) -> Path:
        """The directory."""
        return self._directory.path

    @property
    def version(self) -> VersionRef | None:
        """What is held; None: nothing, see `doubt`."""
        return self._held.state.version if self._held else None

    @property
    def layout(self) -> Layout | None:
        """Its layout."""
        return self._held.layout if self._held else None

    @property
    def table(self) -> DigestTable | None:
        """Its leaves and sums."""
        return self._held.table if self._held else None

    @property
    def root(self) -> str | None:
        """Its root, hexadecimal."""
        return self._held.state.root if self._held else None

    @property
    def image(self) -> Image:
        """Its weights; to be asked for again after each transition. Raises `Invalid` when nothing is held."""
        return self._need().image

    def begin(self, target: VersionRef | None, layout: Layout, table: DigestTable | None, *, fresh: bool = False) -> Transition:
        """Starts towards `target`. In place where the layout is the one held, else, or if `fresh`, into a second image.

        `table` must make up the target's root; both are None for who finds out meanwhile (`Transition.aim`).
        Raises `NoSpace`; `Invalid` while another transition is open.
        """
        if self._closed or self._transition is not None:
            raise Invalid("the replica is closed or already on its way to another version", remedy="finish or abort the transition first")
        self.remember()
        self._transition = Transition(self._place, self._held, target, layout, table, fresh=fresh, settle=self._settle)
        return self._transition

    def remember(self) -> None:
        """Keeps the way back from the last change in place; to be called when there is time, at the latest the next change does.

        That way is only a saving, so failing to keep it is only logged.
        """
        passage, self._passage = self._passage, None
        held = self._held
        if passage is None or held is None:
            if held is not None and self.past.reach(held.state.version) == {held.state.version}:
                self._trim()  # a snapshot led elsewhere
            return
        journal = passage.journal
        try:
            self.past.add(passage.older, passage.newer, flips_of(journal, held.image, held.layout, self.workers) if journal else ())
        except (WeightsyncError, OSError) as error:
            _log.warning("replica %s: version %d is not kept: %s", self.path, passage.older.version.version, error)
        finally:
            self._let_go(passage)
        self._trim()

    def verify(self) -> list[int]:
        """Hashes the image again; numbers of the chunks that are not what they were. Raises `Invalid` when nothing is held."""
        held = self._need()
        return held.image.verify(held.table.leaves, self.workers)

    def forget(self, why: str) -> None:
        """Gives up what is held, and its space."""
        if self._transition is not None:
            raise Invalid("the replica is on its way to another version", remedy="finish or abort the transition first")
        if self._held is not None:
            self._held.image.close()
        self._drop(why)

    def close(self) -> None:
        """Aborts an open transition, unmaps the image and lets other processes in."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._transition is not None:
                self._transition.abort()
            self._let_go(self._passage)
        finally:
            self.past.close()
            if self._held is not None:
                self._held.image.close()
            self._held = None
            self.workers.close()
            self._place.readers.close()
            self._lock.close()
            self._directory.close()

    def _need(self) -> Held:
        if self._held is None:
            raise Invalid(f"replica {str(self.path)!r} holds no version: {self.doubt}")
        return self._held

    def _settle(self, held: Held | None, doubt: str, passage: Passage | None) -> None:
        self._held, self._transition, self._passage = held, None, passage
        self.doubt = "" if held else doubt or self.doubt

    def _let_go(self, passage: Passage | None) -> None:
        if passage is not None and passage.journal is not None:
            passage.journal.discard()

    def _trim(self) -> None:
        held = self._held
        try:
            self.past.trim(held.state if held else None, held.layout.image_bytes if held else 0)
        except (WeightsyncError, OSError) as error:
            _log.warning("replica %s: older versions stay: %s", self.path, error)

    def _load(self) -> None:
        try:
            data = self._directory.read(STATE, MAX_STATE_BYTES)
            if data is not None:
                self._held = self._trust(State.parse(data))
                self.doubt = ""
        except Corrupt as error:
            _log.warning("replica %s holds nothing: %s", self.path, error)
            self._drop(str(error))
            return
        self._remove(JOURNAL)
        if self._held is not None:
            self.past.load(self._held.state.layout)
            self._trim()
        else:
            self.past.clear()
        self._tidy(self.past.files | (self._held.state.files if self._held else frozenset()))

    def _trust(self, state: State) -> Held:
        """What the state names, if it is true. Raises `Corrupt`."""
        layout = Layout.parse(self._read(LAYOUT_PREFIX, state.layout, MAX_LAYOUT_BYTES))
        table = DigestTable.parse(layout, self._read(TABLE_PREFIX, state.table, MAX_DIGESTS_BYTES), state.root)
        image = Image.open(self._directory, state.image, layout, writable=True)
        try:
            self._undo(state, image)
            self._hash(image, table)
        except BaseException:
            image.close()
            raise
        return Held(state, layout, table, image)

    def _hash(self, image: Image, table: DigestTable) -> None:
        bad = image.verify(table.leaves, self.workers)
        if bad:
            raise Corrupt(f"{len(bad)} chunks of the image changed since they were verified, the first is {image.describe(bad[0])}")

    def _read(self, prefix: str, digest: str, max_bytes: int) -> bytes:
        data = self._directory.read(prefix + digest, max_bytes)
        if data is None or blake3(data).hexdigest() != digest:
            raise Corrupt(f"{prefix}{digest[:12]} of the replica is missing or damaged")
        return data

    def _undo(self, state: State, image: Image) -> None:
        journal = Journal.open(self._directory)
        if journal is None:
            return
        try:
            # A journal of another state is one whose transition was finished before its process died.
            if journal.base == state.digest:
                self._place.readers.acquire(exclusive=True, wait_s=self._place.readers_wait_s)
                touched = journal.undo(image)
                _log.warning("replica %s: undid %d chunks of an update that was cut short", self.path, len(touched))
                self._place.readers.release()
        finally:
            journal.close()

    def _drop(self, why: str) -> None:
        self._held, self.doubt = None, why
        self._let_go(self._passage)
        self._passage = None
        self.past.clear()
        self._remove(STATE)
        self._remove(JOURNAL)
        self._tidy(frozenset())

    def _remove(self, name: str) -> None:
        self._directory.remove(name)

    def _tidy(self, keep: frozenset[str]) -> None:
        for name in self._directory.names():
            if name.startswith(_OURS) and name not in keep:
                self._remove(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
