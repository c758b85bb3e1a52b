"""A checkpoint on disk: a Hugging Face directory, or one safetensors file."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from weightsync.errors import Invalid
from weightsync.format.files import FileTable, NamedFile
from weightsync.format.layout import Chunk, Layout, make_layout
from weightsync.format.limits import MAX_FILE_BYTES
from weightsync.format.names import check_file
from weightsync.format.refs import Ref
from weightsync.format.safetensors import PREFIX_BYTES, Header, header_bytes, parse_header
from weightsync.publisher.directory import SAFETENSORS, Listing, check_index, scan
from weightsync.publisher.inputs import InputFile
from weightsync.publisher.source import Chunking


class Checkpoint:
    """Open safetensors files as a `Source`. Everything but the tensors' bytes is read and checked when it is opened."""

    def __init__(
        self,
        layout: Layout,
        files: FileTable,
        objects: Sequence[tuple[Ref, bytes]],
        places: Sequence[tuple[InputFile, int]],
        notes: Sequence[str],
    ) -> None:
        """`places`: for each tensor of the layout its file and the offset of its first byte there."""
        self.layout = layout
        self.files = files
        self.objects = objects
        self.notes = notes
        self._places = places
        self._inputs = tuple({id(file): file for file, _ in places}.values())

    def read(self, chunk: Chunk, into: memoryview) -> memoryview:
        """See `Source.read`."""
        file, start = self._places[chunk.tensor]
        view = into[: chunk.nbytes]
        file.read_into(view, start + chunk.start_lane * self.layout.tensors[chunk.tensor].dtype.lane_bytes)
        return view

    def check_unchanged(self) -> None:
        """See `Source.check_unchanged`."""
        for file in self._inputs:
            file.check_unchanged()

    def close(self) -> None:
        """Closes all files."""
        for file in self._inputs:
            file.close()


def open_checkpoint(path: Path, chunking: Chunking | None = None) -> Checkpoint:
    """Opens a directory or a safetensors file.

    Raises `NotFound`, `Denied`, `Unavailable` for what cannot be read, `Corrupt` for a malformed file, `Invalid` for an input that
    contradicts itself, `Unsupported` for unknown types; each names the file and the tensor.
    """
    directory = path.is_dir()
    listing = scan(path) if directory else Listing((check_file(path.name),), (), None, "", ())
    if not directory and path.exists() and path.suffix != SAFETENSORS:
        raise Invalid(f"{str(path)!r} is not a {SAFETENSORS} file", remedy="name a Hugging Face directory or a .safetensors file")
    root = path if directory else path.parent
    with ExitStack() as stack:
        inputs: dict[str, InputFile] = {}
        for name in listing.tensors:
            inputs[name] = InputFile(root / name)
            stack.callback(inputs[name].close)
        headers = {name: read_header(file) for name, file in inputs.items()}
        check_index(listing, headers)
        if not any(header.entries for header in headers.values()):
            raise Invalid(f"{str(path)!r} holds no tensors", remedy="name a checkpoint that was written completely")
        checkpoint = _assemble(root, listing, inputs, headers, chunking or Chunking())
        stack.pop_all()
    return checkpoint


def read_header(file: InputFile) -> Header:
    """The checked header of a safetensors file."""
    what = repr(str(file.path))
    size = header_bytes(file.read(min(PREFIX_BYTES, file.size_bytes)), file.size_bytes, what)
    return parse_header(file.read(size), file.size_bytes, what)


def _assemble(root: Path, listing: Listing, inputs: dict[str, InputFile], headers: dict[str, Header], chunking: Chunking) -> Checkpoint:
    layout = make_layout(
        (entry.tensor for header in headers.values() for entry in header.entries),
        chunk_lanes=chunking.lanes,
        leaf=chunking.leaf,
    )
    homes = {entry.name: (inputs[name], header.data_start + entry.begin) for name, header in headers.items() for entry in header.entries}
    contents: dict[Ref, bytes] = {}
    table = FileTable(
        small=tuple(_keep(contents, name, _read_small(root, name)) for name in listing.small),
        tensors=tuple(_keep(contents, name, header.raw) for name, header in headers.items()),
    )
    _check_names([entry.name for entry in (*table.small, *table.tensors)])
    return Checkpoint(layout, table, tuple(contents.items()), [homes[t.name] for t in layout.tensors], listing.notes)


def _keep(contents: dict[Ref, bytes], name: str, data: bytes) -> NamedFile:
    ref = Ref.of(data)
    contents[ref] = data
    return NamedFile(check_file(name), ref)


def _read_small(root: Path, name: str) -> bytes:
    file = InputFile(root / name)
    try:
        if file.size_bytes > MAX_FILE_BYTES:
            raise Invalid(f"{str(root / name)!r} grew while it was read")
        data = file.read(file.size_bytes)
        file.check_unchanged()
        return data
    finally:
        file.close()


def _check_names(names: list[str]) -> None:
    """Names that differ in case only cannot be restored on every file system, so readers refuse them."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise Invalid(f"files {other!r} and {name!r} differ in case only", remedy="rename one of them")
