"""`weightsync restore`: a version as an ordinary checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.options import RUN, STORE, TRUST, verb
from weightsync.clock import SYSTEM


@verb(STORE, RUN, TRUST)
def restore(
    context: Context,
    *,
    version: Annotated[str, typer.Option("--version", metavar="N", help="A number, or a channel for where it points.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new directory. Nothing is ever overwritten.")],
    scratch: Annotated[
        Path | None, typer.Option("--scratch", metavar="DIR", help="Rebuild here, such as /dev/shm; default: beside the output.")
    ] = None,
) -> None:
    """Writes a version as a checkpoint that any tool can load.

    The files are byte for byte those that were published. Needs nothing but the store. The directory appears whole or not at all.

    Examples:
      1. Version 7
           weightsync restore --store s3://bucket/models --run tuning --version 7 --out ./step-7
      2. What is being served, rebuilt in memory
           weightsync restore --store s3://bucket/models --run tuning --version serving --out ./served --scratch /dev/shm
    """
    from weightsync.cli import look
    from weightsync.replica.fetch import ShardSource
    from weightsync.replica.restore import check_free, restore_version

    check_free(out)
    record = look.resolve(context.catalog, version)
    started_s = SYSTEM.monotonic_s()
    source = ShardSource(context.catalog)
    with context.out.progress(f"version {record.ref.version}") as advance:
        done = restore_version(context.catalog, record, out, source, workdir=scratch, progress=advance)
    took_s = SYSTEM.monotonic_s() - started_s
    context.out.line(
        f"version {record.ref.version}: {done.files} files, {words.size(done.nbytes)} in {done.path}, "
        f"{words.size(source.bytes_fetched)} fetched, {words.seconds(took_s)}"
    )
    context.out.document(
        {
            "version": record.ref.version,
            "step": record.manifest.step,
            "root": record.manifest.root,
            "out": str(done.path),
            "files": done.files,
            "bytes": done.nbytes,
            "bytes_fetched": source.bytes_fetched,
            "seconds": took_s,
        }
    )
