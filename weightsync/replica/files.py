"""Which files a version consists of: small ones kept whole, and safetensors files cut out of the image."""

from dataclasses import dataclass

from weightsync.catalog import Catalog, VersionRecord
from weightsync.errors import Corrupt
from weightsync.format.files import FileTable, NamedFile
from weightsync.format.layout import Layout, Tensor
from weightsync.format.limits import MAX_FILE_BYTES
from weightsync.format.safetensors import Header, file_order, make_header, parse_header

STATE_DICT_FILE = "model.safetensors"
STATE_DICT_METADATA = {"format": "pt"}  # transformers refuses files without it


@dataclass(frozen=True)
class TensorFile:
    """A safetensors file. `numbers`: for each entry of the header, in order, the tensor of the layout that it holds."""

    name: str
    header: Header
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Files:
    """All files of a version. `made_up`: it was published from memory, and the one tensor file is ours."""

    small: tuple[NamedFile, ...]
    tensors: tuple[TensorFile, ...]
    made_up: bool

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(f.ref.nbytes for f in self.small) + sum(f.header.file_bytes for f in self.tensors)


def files_of(catalog: Catalog, record: VersionRecord, layout: Layout) -> Files:
    """The files of a version. Raises `Corrupt` where headers and layout contradict each other, `Unavailable`."""
    table = catalog.file_table(record.manifest.files)
    if table.tensors:
        return Files(table.small, tuple(_published(catalog, table, layout)), made_up=False)
    if any(f.name.casefold() == STATE_DICT_FILE for f in table.small):
        raise Corrupt(f"the table of files keeps {STATE_DICT_FILE!r} as a small file")
    return Files(table.small, (_made_up(layout),), made_up=True)


def one_file(files: Files, layout: Layout) -> TensorFile:
    """All tensors of a version in a single file: its own where it has just one, else one made up, with the first file's metadata."""
    if len(files.tensors) == 1:
        return files.tensors[0]
    named = {entry.name: entry.tensor for file in files.tensors for entry in file.header.entries}
    metadata = next((file.header.metadata for file in files.tensors if file.header.metadata), STATE_DICT_METADATA)
    header = make_header(file_order(list(named.values())), metadata)
    return TensorFile(STATE_DICT_FILE, header, tuple(layout.index[entry.name] for entry in header.entries))


def small_file(catalog: Catalog, entry: NamedFile) -> bytes:
    """The content of a small file."""
    if entry.ref.nbytes > MAX_FILE_BYTES:
        raise Corrupt(f"file {entry.name!r} is said to have {entry.ref.nbytes} bytes, more than {MAX_FILE_BYTES}")
    return catalog.file(entry.ref)


def _published(catalog: Catalog, table: FileTable, layout: Layout) -> list[TensorFile]:
    files: list[TensorFile] = []
    left = {tensor.name for tensor in layout.tensors}
    for entry in table.tensors:
        header = parse_header(catalog.file(entry.ref), None, entry.name)
        files.append(TensorFile(entry.name, header, tuple(_number(layout, item.tensor, entry.name) for item in header.entries)))
        left -= header.names
    if left:
        raise Corrupt(f"tensor {min(left)!r} of the version is in none of its files")
    return files


def _number(layout: Layout, wanted: Tensor, file: str) -> int:
    number = layout.index.get(wanted.name)
    if number is None:
        raise Corrupt(f"{file}: tensor {wanted.name!r} is not in the version")
    tensor = layout.tensors[number]
    if (tensor.dtype, tensor.shape) != (wanted.dtype, wanted.shape):
        raise Corrupt(f"{file}: tensor {wanted.name!r} has another type or shape than in the version")
    return number


def _made_up(layout: Layout) -> TensorFile:
    named = [*layout.tensors]
    for alias, target in layout.aliases:
        tensor = layout.tensors[layout.index[target]]
        named.append(Tensor(alias, tensor.dtype, tensor.shape))
    header = make_header(file_order(named), STATE_DICT_METADATA)
    return TensorFile(STATE_DICT_FILE, header, tuple(layout.index[entry.name] for entry in header.entries))
