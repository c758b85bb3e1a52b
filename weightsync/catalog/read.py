"""Reading a run. Nothing is handed out that was not verified, and no read is longer than what announced it said."""

import logging
from collections.abc import Iterator

from weightsync.catalog.boundary import missing
from weightsync.catalog.context import Context
from weightsync.catalog.heads import MAX_HEAD_BYTES
from weightsync.catalog.history import History
from weightsync.catalog.records import fetch, fetch_object, naming, read_head, read_manifest
from weightsync.catalog.values import REPLACED, Head, VersionRecord
from weightsync.errors import Invalid, NotFound, Unavailable, WeightsyncError
from weightsync.format.digests import DigestTable
from weightsync.format.files import FileTable
from weightsync.format.keys import LATEST
from weightsync.format.layout import Layout
from weightsync.format.limits import MAX_DIGESTS_BYTES, MAX_HEADER_BYTES, MAX_LAYOUT_BYTES
from weightsync.format.moves import Move
from weightsync.format.names import check_plain
from weightsync.format.operators import Run
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Manifest
from weightsync.trust import Role

logger = logging.getLogger(__name__)

LAYOUTS_KEPT = 4


class Reader:
    """Verified reads of one run. Safe to use from many threads."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._history = History(ctx)
        self._layouts: dict[str, Layout] = {}

    def run(self) -> Run:
        """The run's own record. Raises `NotFound`."""
        key = self._ctx.keys.run_record
        try:
            envelope = fetch(self._ctx, key)
        except NotFound:
            raise NotFound(
                f"run {self._ctx.run!r} does not exist in {self._ctx.store.url}",
                remedy="check --run and --store; the first `weightsync publish` makes the run",
            ) from None
        self._ctx.policy.check(envelope, Role.PUBLISHER, self._ctx.name(key))
        with naming(self._ctx, key):
            return Run.from_envelope(envelope, run=self._ctx.run)

    def head(self, channel: str) -> Head | None:
        """Where `channel` points; None when nobody has moved it yet."""
        try:
            found = self._ctx.store.get(self._ctx.keys.head(channel), max_bytes=MAX_HEAD_BYTES)
        except NotFound:
            return None
        return read_head(self._ctx, channel, found)

    def head_if_changed(self, channel: str, etag: str) -> Head | None:
        """The head, or None while it still has `etag`."""
        key, store = self._ctx.keys.head(channel), self._ctx.store
        try:
            found = (
                store.get(key, max_bytes=MAX_HEAD_BYTES) if etag == REPLACED else store.get_if_changed(key, etag, max_bytes=MAX_HEAD_BYTES)
            )
        except NotFound:
            raise Unavailable(
                f"{self._ctx.name(key)} stood there and is gone", remedy="retry; if it stays away, restore the store"
            ) from None
        return None if found is None else read_head(self._ctx, channel, found)

    def latest(self) -> Head:
        """The head of `latest`. Raises `NotFound` before the first publisher."""
        head = self.head(LATEST)
        if head is None:
            self.run()
            raise NotFound(
                f"nothing was published to run {self._ctx.run!r} in {self._ctx.store.url} yet", remedy="run `weightsync publish`"
            )
        return head

    def channels(self) -> list[str]:
        """Names of channels, by LIST: for display."""
        prefix, found = self._ctx.keys.channels, []
        for stat in self._ctx.store.list(prefix):
            name, _, rest = stat.key.removeprefix(prefix).partition("/")
            if rest == "head" and _is_plain(name):
                found.append(name)
        return found

    def history(self, head: Head, *, down_to: int = 1) -> Iterator[tuple[Move, str]]:
        """(move, digest), newest first, each checked against its successor."""
        return self._history.walk(head, down_to=down_to)

    def check_logged(self, head: Head) -> None:
        """Whether the log holds the head's own record. Raises `Corrupt`."""
        self._history.check_logged(head)

    def committed(self, head: Head | None = None) -> list[VersionRef]:
        """Committed versions, ascending; of `head`, or of what `latest` is now."""
        found = head or self.head(LATEST)
        return self._history.committed(found) if found else []

    def find_move(self, head: Head, version: int) -> Move:
        """The newest move of `latest` to `version`, whose `manifest` is not None. Raises `NotFound` when it was not committed."""
        move = self._history.find(head, version) if version > 0 else None
        if move is None:
            raise NotFound(
                f"version {version} of run {self._ctx.run!r} does not exist (the highest is {head.move.highest})",
                remedy="`weightsync versions` lists what does",
            )
        return move

    def find(self, version: int) -> VersionRef:
        """The committed version of that number. Raises `NotFound`."""
        move = self.find_move(self.latest(), version)
        return VersionRef(version, move.manifest.digest if move.manifest else "")

    def manifest(self, ref: VersionRef) -> VersionRecord:
        """The manifest of a committed version. Raises `Compacted`, or `Unavailable` while it is not visible."""
        try:
            return read_manifest(self._ctx, ref)
        except NotFound:
            raise missing(self._ctx, ref.version, f"the manifest {self._ctx.keys.manifest(ref.version)!r}") from None

    def layout(self, ref: Ref) -> Layout:
        """A table of tensors; the last few are kept."""
        known = self._layouts.get(ref.digest)
        if known is None:
            key = self._ctx.keys.layout(ref.digest)
            with naming(self._ctx, key):
                known = Layout.parse(self._object(key, ref, MAX_LAYOUT_BYTES))
            while len(self._layouts) >= LAYOUTS_KEPT:
                self._layouts.pop(next(iter(self._layouts), ""), None)
            self._layouts[ref.digest] = known
        return known

    def digests(self, manifest: Manifest, layout: Layout) -> DigestTable:
        """Leaves and sums, which make up the manifest's root. Raises `Compacted`."""
        if layout.digest != manifest.layout.digest:
            raise Invalid(f"that is not the layout of version {manifest.version}", remedy="take layout(manifest.layout)")
        key = self._ctx.keys.digests(manifest.writer, manifest.version, manifest.digests.digest)
        try:
            data = fetch_object(self._ctx, key, manifest.digests, MAX_DIGESTS_BYTES)
        except NotFound:
            raise missing(self._ctx, manifest.version, f"the table of leaves {key!r}") from None
        with naming(self._ctx, key):
            return DigestTable.parse(layout, data, manifest.root)

    def file_table(self, ref: Ref) -> FileTable:
        """A table of files."""
        key = self._ctx.keys.file(ref.digest)
        with naming(self._ctx, key):
            return FileTable.parse(self._object(key, ref, MAX_LAYOUT_BYTES))

    def file(self, ref: Ref) -> bytes:
        """A small file, or a safetensors header."""
        return self._object(self._ctx.keys.file(ref.digest), ref, MAX_HEADER_BYTES)

    def _object(self, key: str, ref: Ref, limit: int) -> bytes:
        try:
            return fetch_object(self._ctx, key, ref, limit)
        except NotFound:
            raise self._absent(key) from None

    def _absent(self, key: str) -> WeightsyncError:
        # Layouts and files are kept while the run lives: one that is missing cannot have been collected.
        return Unavailable(
            f"{self._ctx.name(key)} is missing", remedy="it may not be visible yet: retry; if it stays away, run `weightsync verify`"
        )


def _is_plain(name: str) -> bool:
    try:
        return bool(check_plain(name, "channel"))
    except Invalid:
        return False
