"""What `doctor` looks at on this machine: versions, the codec's kernel, the cache, shared memory."""

import os
import platform
import shutil
import stat
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from weightsync.cli.findings import Finding, Level, attempt, ok, warning
from weightsync.cli.words import size
from weightsync.wiring import SHARED_MEMORY

LIBRARIES = ("numpy", "blake3", "xxhash", "zstandard", "boto3", "cryptography", "torch", "safetensors")
SCARCE_BYTES = 1 << 30


def check_host(cache: Path, images: Path) -> Iterator[Finding]:
    """Everything that needs no store."""
    yield attempt("versions", _versions)
    yield attempt("kernel", _kernel)
    yield attempt("cache", lambda: _cache(cache))
    yield attempt("images", lambda: _images(images))


def _versions() -> Finding:
    found = [f"{name} {version}" for name in ("weightsync", *LIBRARIES) if (version := _version(name))]
    return ok("versions", ", ".join([f"Python {platform.python_version()}", *found]))


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _kernel() -> Finding:
    from weightsync.codec import dispatch_level

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no kernel is said here
        level = dispatch_level()
    if level == "reference":
        remedy = "install weightsync again where there is a C++17 compiler"
        return warning("kernel", "none: the NumPy reference codes and decodes, 20 to 100 times slower", remedy)
    return ok("kernel", level)


def _cache(cache: Path) -> Finding:
    """Writable, private, with room. A cache that does not exist yet is judged by the directory that it would be made in."""
    place = _existing(cache)
    if not place.is_dir():
        return Finding("cache", Level.WRONG, f"{place} is not a directory", "name another with --cache")
    if not os.access(place, os.W_OK | os.X_OK):
        return Finding("cache", Level.WRONG, f"{cache} is not writable", "give this user access, or name another with --cache")
    if cache.exists() and cache.stat().st_mode & stat.S_IWOTH:
        return warning("cache", f"{cache} is writable for everyone", f"chmod o-w {cache}")
    return _room("cache", cache, "free some, or name another with --cache")


def _images(images: Path) -> Finding:
    """Where a subscriber's image would lie: in memory, and with room."""
    if SHARED_MEMORY not in images.parents and images != SHARED_MEMORY:
        remedy = f"give containers a larger {SHARED_MEMORY}, or name another file system in memory with --images"
        return warning("images", f"{images} is not in shared memory: every update rewrites the whole model there", remedy)
    return _room("images", images, f"free some, or mount {SHARED_MEMORY} larger")


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _room(name: str, where: Path, remedy: str) -> Finding:
    free = shutil.disk_usage(_existing(where)).free
    detail = f"{where}, {size(free)} free"
    return warning(name, detail, remedy) if free < SCARCE_BYTES else ok(name, detail)
