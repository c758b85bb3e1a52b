"""Whether a rebuilt checkpoint is the trainer's, byte for byte."""

from pathlib import Path

from weightsync.publisher.checkpoint import open_checkpoint

BLOCK_BYTES = 8 << 20


def identical(published: Path, rebuilt: Path) -> bool:
    """Whether the directory `rebuilt` holds the very files that belong to `published`, no more and no less."""
    wanted = _belonging(published)
    found = {str(file.relative_to(rebuilt)) for file in rebuilt.rglob("*") if file.is_file()}
    return wanted.keys() == found and all(_same(file, rebuilt / name) for name, file in wanted.items())


def _belonging(path: Path) -> dict[str, Path]:
    """What travels of a checkpoint, by relative name: not optimizer states, say."""
    source = open_checkpoint(path)
    try:
        names = [entry.name for entry in (*source.files.small, *source.files.tensors)]
    finally:
        source.close()
    return {name: path if path.is_file() else path / name for name in names}


def _same(a: Path, b: Path) -> bool:
    if a.stat().st_size != b.stat().st_size:
        return False
    with a.open("rb") as one, b.open("rb") as other:
        while block := one.read(BLOCK_BYTES):
            if other.read(len(block)) != block:
                return False
    return True
