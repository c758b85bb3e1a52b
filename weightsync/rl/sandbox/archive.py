"""Files as one canonical archive: sorted, without times and owners. Only the standard library: it also runs inside sandboxes.

Reading one may not trust it: it comes out of a sandbox. Names, counts and sizes are checked before anything is written.
"""

import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from weightsync.errors import Invalid

MAX_ENTRIES = 20_000
MAX_DEPTH = 64
MAX_NAME = 1024
KEPT_BITS = 0o777


def pack(files: Mapping[str, bytes]) -> bytes:
    """An archive of `files` by relative path. Raises `Invalid` for paths that lead elsewhere."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            info = _info(checked_name(name), 0o644)
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))
    return out.getvalue()


def pack_tree(root: Path, limit_bytes: int) -> bytes:
    """An archive of all regular files, directories and links under `root`; other kinds are left out. Links are not followed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _walk(root, 0, [MAX_ENTRIES]):
            found = path.lstat()
            info = _info(path.relative_to(root).as_posix(), stat.S_IMODE(found.st_mode) & KEPT_BITS)
            if stat.S_ISREG(found.st_mode):
                limit_bytes -= found.st_size
                if limit_bytes < 0:
                    raise Invalid("the files are larger than a snapshot may be")
                info.size = found.st_size
                with _readable(path).open("rb") as file:
                    archive.addfile(info, file)
                continue
            if stat.S_ISLNK(found.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
            elif stat.S_ISDIR(found.st_mode):
                info.type = tarfile.DIRTYPE
            else:
                continue
            archive.addfile(info)
    return out.getvalue()


def unpack(data: bytes, root: Path, limit_bytes: int, owner: int | None = None) -> None:
    """Writes the archive's files under `root`, over those that are there; `owner` is their user. Raises `Invalid` for what is not ours."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for count, info in enumerate(archive):
                limit_bytes -= info.size
                if count >= MAX_ENTRIES or limit_bytes < 0:
                    raise Invalid("the archive holds more than a snapshot may")
                _write(archive, info, root, owner)
    except (tarfile.TarError, ValueError, UnicodeError) as error:
        raise Invalid(f"not an archive of files: {error}") from error


def checked_name(name: str) -> str:
    """`name`, if it is a path that stays below where it starts. Raises `Invalid`."""
    path = PurePosixPath(name)
    parts = path.parts
    if not parts or path.is_absolute() or ".." in parts or "\0" in name or len(name) > MAX_NAME or len(parts) > MAX_DEPTH:
        raise Invalid(f"{name[:80]!r} is not a path inside a sandbox", remedy="give a short relative path")
    return path.as_posix()


def _info(name: str, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = mode
    return info


def _walk(path: Path, depth: int, left: list[int]) -> Iterator[Path]:
    for child in sorted(_readable(path).iterdir()):
        left[0] -= 1
        if depth >= MAX_DEPTH or left[0] < 0:
            raise Invalid("there are more files, or deeper directories, than a snapshot may hold")
        yield child
        if stat.S_ISDIR(child.lstat().st_mode):
            yield from _walk(child, depth + 1, left)


def _readable(path: Path) -> Path:
    """Whoever owns it may take its permissions away and give them back."""
    mode = stat.S_IMODE(path.lstat().st_mode)
    needed = 0o700 if path.is_dir() else 0o400
    if mode & needed != needed:
        path.chmod(mode | needed)
    return path


def _write(archive: tarfile.TarFile, info: tarfile.TarInfo, root: Path, owner: int | None) -> None:
    path = root / checked_name(info.name)
    for parent in reversed(path.relative_to(root).parents):
        _directory(root / parent, owner)
    if info.isdir():
        _directory(path, owner)
        path.chmod(info.mode & KEPT_BITS)
        return
    if path.is_symlink() or path.exists():
        path.unlink()
    if info.issym():
        path.symlink_to(info.linkname)
    else:
        source = archive.extractfile(info)
        if source is None or not info.isreg():
            raise Invalid(f"{info.name!r} in an archive is neither a file, a directory nor a link")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123  of a descriptor
            file.write(source.read())
            os.fchmod(file.fileno(), info.mode & KEPT_BITS)
    if owner is not None:
        os.chown(path, owner, owner, follow_symlinks=False)


def _directory(path: Path, owner: int | None) -> None:
    if path.is_symlink():
        raise Invalid(f"{path.name!r} in an archive is a link and a directory")
    if not path.is_dir():
        path.mkdir(0o755)
        if owner is not None:
            os.chown(path, owner, owner)
