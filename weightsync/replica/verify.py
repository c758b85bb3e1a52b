"""Looks for damage: a version in the store with all it needs, or a checkpoint directory against a version.

Both give findings as they come, and no finding means that every byte was looked at and is right. A missing object is a finding; an outage
of the store is none: it is raised.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3

from weightsync.catalog import Catalog, ForeignPayload, VersionRecord
from weightsync.codec import chunk_sum, decode
from weightsync.codec.api import Changes
from weightsync.errors import Compacted, Corrupt, Denied, Invalid, NoSpace, NotFound, Unavailable, Unsupported, WeightsyncError
from weightsync.format.digests import DigestTable
from weightsync.format.files import NamedFile
from weightsync.format.layout import Layout
from weightsync.format.root import leaf_digest
from weightsync.format.safetensors import PREFIX_BYTES, Header, header_bytes, parse_header
from weightsync.format.shard import parse_shard
from weightsync.format.versions import Form, Payload
from weightsync.replica.directory import read_exactly
from weightsync.replica.fetch import ShardSource
from weightsync.replica.files import Files, TensorFile, files_of
from weightsync.replica.image import describe_chunk
from weightsync.replica.parallel import Workers
from weightsync.replica.readers import ImageReader
from weightsync.replica.replica import Replica
from weightsync.replica.update import Progress, update
from weightsync.store.oserrors import named_errors

DAMAGE = (  # errors that may mean that something in the store is damaged
    Corrupt,
    Compacted,
    NotFound,
    Unsupported,
    Invalid,
    Unavailable,
)
_SUFFIX = ".safetensors"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not hang us


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `kind` is that of the error; `what` names the object, file or tensor."""

    kind: str
    what: str
    message: str
    remedy: str = ""

    @classmethod
    def of(cls, error: WeightsyncError, what: str) -> "Finding":
        """From an error."""
        return cls(error.kind, what, error.message, error.remedy)


def verify_version(catalog: Catalog, record: VersionRecord, replica: Replica, *, progress: Progress | None = None) -> Iterator[Finding]:
    """Checks one version by making it: records, layout, leaves, root, files, every payload's shards, the weights, the sums.

    `replica` (its own directory, nobody's serving copy) is brought to the version and stays there, so that checking versions in ascending
    order costs one delta each. Objects come from the store, not from a cache. Deltas that were not on the way are checked by digest and
    structure; snapshots by decoding them. Raises `Unavailable`, `NoSpace`, `Denied`.
    """
    what = f"version {record.ref.version}"
    source = ShardSource(catalog)
    try:
        layout = catalog.layout(record.manifest.layout)
        table = catalog.digests(record.manifest, layout)
    except DAMAGE as error:
        yield finding_of(catalog, error, what)
        return
    yield from _check_files(catalog, record, layout)
    walked: set[Payload] = set()
    try:
        done = update(replica, catalog, record, source, progress=progress)
        walked = {*done.path.steps, *(payload for payload, _ in done.avoided)}
        yield from (finding_of(catalog, error, f"payload of version {p.target.version} from {p.base_version}") for p, error in done.avoided)
        yield from _check_sums(replica, table)
    except DAMAGE as error:
        yield finding_of(catalog, error, what)
    yield from _check_payloads(catalog, record, source, walked, layout=layout, table=table)


def verify_records(catalog: Catalog, record: VersionRecord) -> Iterator[Finding]:
    """Checks a version without reading its weights: records, layout, digests, files, and that every shard is there with its size.

    Raises `Unavailable`, `Denied`.
    """
    what = f"version {record.ref.version}"
    try:
        layout = catalog.layout(record.manifest.layout)
        catalog.digests(record.manifest, layout)
        catalog.payload(record, record.manifest.base, record.manifest.writer)
        payloads = catalog.payloads(record)
    except DAMAGE as error:
        yield finding_of(catalog, error, what)
        return
    yield from _check_files(catalog, record, layout)
    yield from _check_added(catalog, record)
    for payload in payloads:
        yield from _check_sizes(catalog, payload)
        for shard in payload.shards:
            key = catalog.keys.shard(payload.writer, payload.target.version, payload.base_version, shard.digest)
            try:
                size = catalog.store.stat(key).size_bytes
                if size < shard.nbytes:
                    raise Corrupt(
                        f"shard {key!r} has {size} bytes instead of {shard.nbytes}", remedy="bring it back with `weightsync repair`"
                    )
            except DAMAGE as error:
                yield finding_of(catalog, error, key)


def verify_image(catalog: Catalog, record: VersionRecord, reader: ImageReader, *, threads: int = 1) -> Iterator[Finding]:
    """Compares an image on this host with a version, every byte of it, by what the store says the version is.

    Raises `Corrupt` where the version's own records are damaged, `Unavailable`, `Denied`.
    """
    layout = catalog.layout(record.manifest.layout)
    if reader.version != record.ref or reader.layout.digest != layout.digest:
        message = f"the image holds version {reader.version.version}, not version {record.ref.version} of this run"
        yield Finding("corrupt", "image", message, "name the version that it holds, or let its subscriber run")
        return
    workers = Workers(threads)
    try:
        wrong = reader.image.verify(catalog.digests(record.manifest, layout).leaves, workers)
    finally:
        workers.close()
    for number in wrong:
        message = f"image: {describe_chunk(layout, number)} differs from the version"
        yield Finding("corrupt", "image", message, "restart its subscriber: it checks its image then; if it comes back, suspect the memory")


def finding_of(catalog: Catalog, error: WeightsyncError, what: str) -> Finding:
    """What `error` says of the store; an error that says nothing of it, such as an outage, is raised instead."""
    # Something missing is reported as unavailable, since it may yet appear. If the store answers otherwise, it is missing.
    if isinstance(error, Denied | NoSpace):
        raise error
    if isinstance(error, Unavailable):
        catalog.run()
    return Finding.of(error, what)


def _check_files(catalog: Catalog, record: VersionRecord, layout: Layout) -> Iterator[Finding]:
    what = f"files of version {record.ref.version}"
    try:
        files = files_of(catalog, record, layout)
    except DAMAGE as error:
        yield finding_of(catalog, error, what)
        return
    for entry in files.small:
        try:
            catalog.file(entry.ref)
        except DAMAGE as error:
            yield finding_of(catalog, error, f"{what}: {entry.name}")
    if record.manifest.checkpoint_bytes not in (files.nbytes, layout.nbytes):
        yield Finding("corrupt", what, f"the manifest says {record.manifest.checkpoint_bytes} bytes, the files take {files.nbytes}")


def _check_sums(replica: Replica, table: DigestTable) -> Iterator[Finding]:
    image = replica.image
    layout = image.layout
    sums = [0] * len(layout.tensors)
    for chunk in layout.chunks:
        part = chunk_sum(layout.tensors[chunk.tensor].dtype, image.chunk(chunk.number), chunk.start_lane)
        sums[chunk.tensor] = (sums[chunk.tensor] + part) % (1 << 64)
    for number in np.flatnonzero(np.array(sums, np.uint64) != table.sums):
        name = layout.tensors[number].name
        yield Finding("corrupt", f"tensor {name!r}", f"the sum of {name!r} is not what the version states", "publish a new version")


def _check_payloads(
    catalog: Catalog, record: VersionRecord, source: ShardSource, walked: set[Payload], *, layout: Layout, table: DigestTable
) -> Iterator[Finding]:
    try:
        # The first payload is the version's own; of others, only those count that are usable.
        catalog.payload(record, record.manifest.base, record.manifest.writer)
        payloads = catalog.payloads(record)
    except DAMAGE as error:
        yield finding_of(catalog, error, f"payloads of version {record.ref.version}")
        return
    yield from _check_added(catalog, record)
    for payload in payloads:
        yield from _check_sizes(catalog, payload)
        if payload in walked:
            continue
        for shard in payload.shards:
            try:
                frames = parse_shard(memoryview(source.read(payload, shard)), len(layout.chunks))
                if payload.form is Form.SNAPSHOT:
                    _check_snapshot(frames, layout, table)
            except DAMAGE as error:
                yield finding_of(catalog, error, f"shard {shard.digest[:12]} of version {record.ref.version} from {payload.base_version}")


def _check_added(catalog: Catalog, record: VersionRecord) -> Iterator[Finding]:
    """Further payloads whose records are damaged: readers pass over them. What a publisher left that lost its number is none of ours."""
    first = (record.manifest.base, record.manifest.writer)
    for stat in catalog.store.list(catalog.keys.payloads(record.ref.version)):
        _, base, writer = catalog.keys.parse_payload(stat.key) or (0, *first)
        try:
            if (base, writer) != first:
                catalog.payload(record, base, writer)
        except (Corrupt, Unsupported) as error:
            if not (isinstance(error, ForeignPayload) and writer.isdecimal()):
                yield Finding.of(error, stat.key)


def _check_sizes(catalog: Catalog, payload: Payload) -> Iterator[Finding]:
    """Readers take as many bytes as the payload says, so that a longer object does no harm; it is not what was published, though."""
    for shard in payload.shards:
        key = catalog.keys.shard(payload.writer, payload.target.version, payload.base_version, shard.digest)
        with suppress(NotFound, Invalid):  # found out, and reported, by reading it
            size = catalog.store.stat(key).size_bytes
            if size > shard.nbytes:
                yield Finding(
                    "corrupt", key, f"shard {key!r} has {size} bytes instead of {shard.nbytes}", "restore it from a copy of the store"
                )


def _check_snapshot(frames: list[tuple[int, memoryview]], layout: Layout, table: DigestTable) -> None:
    for number, frame in frames:
        chunk = layout.chunks[number]
        found = decode(layout.tensors[chunk.tensor].dtype, frame, None, chunk.lanes)
        if isinstance(found, Changes) or leaf_digest(layout.leaf, found.data) != table.leaf(layout, number):
            raise Corrupt(f"{describe_chunk(layout, number)} does not have the leaf that the version states")


def verify_directory(catalog: Catalog, record: VersionRecord, directory: Path, *, progress: Progress | None = None) -> Iterator[Finding]:
    """Compares a checkpoint directory with a version, every byte of it; other files in it are ignored, except safetensors files.

    `directory` may be one safetensors file with all tensors, in any order. A version published from memory has no files of its own: any
    safetensors files that hold just its tensors will do.
    Raises `Corrupt` where the version's own records are damaged, `Unavailable`, `Denied`.
    """
    if not directory.is_dir() and not (directory.is_file() and directory.suffix == _SUFFIX):
        raise Invalid(f"{str(directory)!r} is not a directory", remedy="name the directory of a checkpoint, or one safetensors file")
    layout = catalog.layout(record.manifest.layout)
    table = catalog.digests(record.manifest, layout)
    files = files_of(catalog, record, layout)
    if directory.is_file():
        yield from _Comparison(directory.parent, layout, table, files, progress).any_files([directory.name])
        return
    present = sorted(p.relative_to(directory).as_posix() for p in directory.rglob(f"*{_SUFFIX}"))
    compare = _Comparison(directory, layout, table, files, progress)
    for small in files.small:
        yield from compare.small(small)
    if files.made_up:
        yield from compare.any_files(present)
        return
    for file in files.tensors:
        yield from compare.published(file)
    for name in sorted(set(present) - {file.name for file in files.tensors}):
        yield Finding("corrupt", name, f"{name!r} is no file of version {record.ref.version}", "move it elsewhere: loaders would read it")


class _Comparison:
    def __init__(self, directory: Path, layout: Layout, table: DigestTable, files: Files, progress: Progress | None) -> None:
        self._directory, self._layout, self._table = directory, layout, table
        self._progress, self._done, self._total = progress, 0, files.nbytes

    def small(self, entry: NamedFile) -> Iterator[Finding]:
        path = self._directory / entry.name
        with named_errors(f"reading {str(path)!r}"):
            if not path.is_file():
                yield _missing(entry.name)
                return
            same = path.stat().st_size == entry.ref.nbytes and blake3(path.read_bytes()).hexdigest() == entry.ref.digest
        if not same:
            yield Finding("corrupt", entry.name, f"{entry.name!r} differs from the published file", "restore the version again")
        self._count(entry.ref.nbytes)

    def published(self, file: TensorFile) -> Iterator[Finding]:
        path = self._directory / file.name
        with named_errors(f"reading {str(path)!r}"):
            if not path.is_file():
                yield _missing(file.name)
                return
            fd = os.open(path, _READ)
            try:
                if os.fstat(fd).st_size != file.header.file_bytes or read_exactly(fd, len(file.header.raw)) != file.header.raw:
                    message = f"{file.name!r} has another size or header than the published file"
                    yield Finding("corrupt", file.name, message, "restore the version again")
                else:
                    yield from self._tensors(fd, file.name, file.header)
            finally:
                os.close(fd)

    def any_files(self, names: list[str]) -> Iterator[Finding]:
        left = set(self._layout.index)
        for name in names:
            path = self._directory / name
            with named_errors(f"reading {str(path)!r}"):
                if not path.is_file():
                    yield Finding("corrupt", name, f"{name!r} is no regular file, or a link to nothing", "remove it: loaders would read it")
                    continue
                fd = os.open(path, _READ)
                try:
                    size = os.fstat(fd).st_size
                    header = parse_header(read_exactly(fd, header_bytes(read_exactly(fd, PREFIX_BYTES), size, name)), size, name)
                    yield from self._tensors(fd, name, header)
                    left -= header.names
                except (Corrupt, Invalid, Unsupported) as error:
                    yield Finding.of(error, name)
                finally:
                    os.close(fd)
        # A tied tensor may be written once, under any of its names.
        held = {self._layout.index[name] for name in self._layout.index if name not in left}
        for tensor_name in sorted(name for name in left if self._layout.index[name] not in held):
            yield Finding("corrupt", tensor_name, f"tensor {tensor_name!r} is in none of the files", "restore the version again")

    def _tensors(self, fd: int, file: str, header: Header) -> Iterator[Finding]:
        layout = self._layout
        for entry in header.entries:
            number = layout.index.get(entry.name)
            if number is None or (layout.tensors[number].dtype, layout.tensors[number].shape) != (entry.dtype, entry.shape):
                message = f"{file}: tensor {entry.name!r} is not in the version, or has another type or shape there"
                yield Finding("corrupt", entry.name, message, "publish this checkpoint as a version of its own")
                continue
            for chunk in layout.chunks[layout.first_chunks[number] : layout.first_chunks[number + 1]]:
                start = header.data_start + entry.begin + chunk.offset - layout.offsets[number]
                if leaf_digest(layout.leaf, read_exactly(fd, chunk.nbytes, start)) != self._table.leaf(layout, chunk.number):
                    message = f"{file}: {describe_chunk(layout, chunk.number)} differs from the version"
                    yield Finding("corrupt", entry.name, message, "restore the version again")
                self._count(chunk.nbytes)

    def _count(self, nbytes: int) -> None:
        self._done += nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)


def _missing(name: str) -> Finding:
    return Finding("not_found", name, f"{name!r} is missing", "restore the version again")
