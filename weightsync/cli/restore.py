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
    out: Annotated[
        Path, typer.Option("--out", metavar="PATH", help="A new directory, or X.safetensors for one file. Nothing is ever overwritten.")
    ],
    scratch: Annotated[
        Path | None, typer.Option("--scratch", metavar="DIR", help="Rebuild here, such as /dev/shm; default: beside the output.")
    ] = None,
) -> None:
    """Writes a version as a checkpoint that any tool can load.

    The files are byte for byte those that were published. Needs nothing but the store. The output appears whole or not at all. What
    was downloaded stays in --cache, so that after an interruption it need not be fetched again.

    Examples:
      1. Version 7
           weightsync restore --store s3://bucket/models --run tuning --version 7 --out ./step-7
      2. What is being served, rebuilt in memory
           weightsync restore --store s3://bucket/models --run tuning --version serving --out ./served --scratch /dev/shm
      3. All tensors in one file
           weightsync restore --store s3://bucket/models --run tuning --version 7 --out ./step-7.safetensors
    """
    from weightsync.cli import look
    from weightsync.replica.restore import check_free, restore_version
    from weightsync.wiring import open_shards

    check_free(out)
    record = look.resolve(context.catalog, version)
    started_s = SYSTEM.monotonic_s()
    source = open_shards(context.settings, context.catalog)
    with context.out.progress(f"version {record.ref.version}") as advance:
        done = restore_version(context.catalog, record, out, source, workdir=scratch, progress=advance)
    took_s = SYSTEM.monotonic_s() - started_s
    cached = f" ({words.size(source.bytes_cached)} were here)" if source.bytes_cached else ""
    context.out.line(
        f"version {record.ref.version}: {words.count(done.files, 'file')}, {words.size(done.nbytes)} in {done.path}, "
        f"{words.size(source.bytes_fetched)} fetched{cached}, {words.seconds(took_s)}"
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
            "bytes_cached": source.bytes_cached,
            "seconds": took_s,
        }
    )
