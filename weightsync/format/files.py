"""The table of files of a version: its small files, and how its tensors were split over safetensors files.

Each safetensors file is kept as its header's exact bytes, so that `restore` gives back the published files byte for byte.
The table is stored by digest under `files/`, as are the files and headers it names: what does not change costs nothing.
"""

from dataclasses import dataclass

from weightsync.errors import Corrupt, Invalid
from weightsync.format import canonical
from weightsync.format.fields import Fields
from weightsync.format.limits import FORMAT_VERSION, MAX_FILE_BYTES, MAX_HEADER_BYTES
from weightsync.format.names import check_file
from weightsync.format.refs import Ref


@dataclass(frozen=True)
class NamedFile:
    """A file of the checkpoint directory: its relative name, and its content or (for safetensors) its header."""

    name: str
    ref: Ref


@dataclass(frozen=True)
class FileTable:
    """`small`: files kept whole. `tensors`: safetensors files by header; empty for a state dict, which restores as one file."""

    small: tuple[NamedFile, ...] = ()
    tensors: tuple[NamedFile, ...] = ()

    def to_bytes(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "format": FORMAT_VERSION,
                "kind": "files",
                "small": [{"content": f.ref.to_body(), "name": f.name} for f in self.small],
                "tensors": [{"header": f.ref.to_body(), "name": f.name} for f in self.tensors],
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> "FileTable":
        """Reads stored bytes. Raises `Corrupt`."""
        fields = Fields(canonical.parse(data, "table of files"), "table of files")
        fields.constant("kind", "files")
        fields.constant("format", FORMAT_VERSION)
        small = tuple(_read(entry, "content", MAX_FILE_BYTES) for entry in fields.objects("small"))
        tensors = tuple(_read(entry, "header", MAX_HEADER_BYTES) for entry in fields.objects("tensors"))
        fields.done()
        names = [entry.name for entry in (*small, *tensors)]
        if len({name.casefold() for name in names}) != len(names):
            raise Corrupt("a name stands twice in the table of files")
        return cls(small, tensors)


def _read(fields: Fields, kind: str, limit: int) -> NamedFile:
    name, ref = fields.text("name"), Ref.take(fields, kind)
    fields.done()
    if ref.nbytes > limit:
        raise Corrupt(f"{name[:80]!r} in the table of files has {ref.nbytes} bytes, more than {limit}")
    try:
        return NamedFile(check_file(name), ref)
    except Invalid as error:
        raise Corrupt(str(error)) from error
