"""`weightsync verify`: prove it."""

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.failures import FOUND_WRONG
from weightsync.cli.options import RUN, STORE, TRUST, verb
from weightsync.cli.verify_engine import verify_engine
from weightsync.cli.verify_report import Report
from weightsync.clock import jitter
from weightsync.errors import Compacted, Invalid, NotFound, WeightsyncError

if TYPE_CHECKING:
    from weightsync.catalog import Catalog
    from weightsync.format.operators import Boundary
    from weightsync.format.refs import VersionRef

IMAGE_WAIT_S = 30.0  # for a subscriber that is just changing it
MAX_SAMPLE = 1_000_000
_NOISY = ("weightsync.replica", "weightsync.catalog")  # loggers


@verb(STORE, RUN, TRUST)
def verify(
    context: Context,
    *,
    version: Annotated[
        str | None, typer.Option("--version", metavar="N", help="A number, or a channel for where it points; default: every version.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="DIR", help="Compare this checkpoint with the version (default: latest).")
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(
            "--image", metavar="DIR", help="Compare a subscriber's image on this host with the version (default: the one it holds)."
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="URL", help="Compare the live weights of this engine with the version that it says it serves."),
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option("--sample", metavar="N|N%", help="Rebuild only so many versions, drawn at random; of the others check all records."),
    ] = None,
) -> int:
    """Proves that versions rebuild bit for bit.

    Reads every object that a version needs from the store, checks records, signatures and digests, rebuilds the weights and checks every
    chunk, the root and the sums. With --checkpoint it compares a directory with a version, every byte, with --image what a subscriber
    of this host holds in memory, while it runs, with --engine the sums of an engine's live weights, while it serves. --sample is for
    large stores: every record is checked and every object must be there with its size, but only some versions, others each time, are
    rebuilt. Ends with 1 on any doubt.

    Examples:
      1. The whole run
           weightsync verify --store s3://bucket/models --run tuning
      2. One version
           weightsync verify --store s3://bucket/models --run tuning --version 7
      3. Is this directory version 7?
           weightsync verify --store s3://bucket/models --run tuning --version 7 --checkpoint ./step-7
      4. Is what a subscriber holds what was published?
           weightsync verify --store s3://bucket/models --run tuning --image /dev/shm/weightsync-1000/tuning-0123456789abcdef
      5. Does this engine serve what it says?
           weightsync verify --store s3://bucket/models --run tuning --engine vllm+http://127.0.0.1:8000
      6. Every night, a tenth of a large store
           weightsync verify --store s3://bucket/models --run tuning --sample 10%
    """
    share = _share(sample)
    if sum(given is not None for given in (checkpoint, image, engine, sample)) > 1 or (sample and version):
        raise Invalid(
            "--checkpoint, --image, --engine and --sample exclude each other, and --sample --version", remedy="leave all but one out"
        )
    report = Report(context.out)
    with _findings_alone(context):
        run = _run(context, report, channels=all(given is None for given in (version, checkpoint, image, engine)))
        if engine is not None:
            versions = [verify_engine(context, report, version, engine)]
        elif image is not None:
            versions = [_image(context, report, version, image)]
        elif checkpoint is None:
            versions = list(_rebuild(context, report, version, run_ok=run["ok"], share=share))
        else:
            versions = [_compare(context, report, version or "latest", checkpoint)]
    report.show()
    context.out.line(
        f"{words.count(len(versions), 'version')} looked at, {words.count(report.wrong, 'thing') if report.wrong else 'nothing'} wrong"
    )
    context.out.document({"ok": not report.wrong, "run": run, "versions": versions, "damage": report.documents()})
    return FOUND_WRONG if report.wrong else 0


@contextmanager
def _findings_alone(context: Context) -> Iterator[None]:
    """Keeps warnings out of the log that say what is reported anyway, unless a level was asked for."""
    if "log_level" in context.settings.model_fields_set:
        yield
        return
    before = {name: logging.getLogger(name).level for name in _NOISY}
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _run(context: Context, report: Report, *, channels: bool) -> dict[str, Any]:
    """The run's record, its boundary, and with `channels` every channel with all of its history."""
    from weightsync.format.keys import LATEST
    from weightsync.replica.verify import DAMAGE, Finding, finding_of

    catalog = context.catalog
    name = catalog.run().run
    found: list[Finding] = []
    moved = _moved(catalog)
    for channel in sorted({LATEST, *catalog.channels(), *moved} if channels else ()):
        try:
            head = catalog.head(channel)
            if head is None and channel in moved:
                key = catalog.keys.head(channel)
                found.append(Finding("not_found", f"channel {channel}", f"{key!r} is missing, and was there", "`weightsync repair` it"))
            moves = sum(1 for _ in catalog.history(head)) if head else 0
            if head is not None:
                catalog.check_logged(head)
            context.out.line(f"ok   channel {channel}: {words.count(moves, 'move')}")
        except DAMAGE as error:
            found.append(finding_of(catalog, error, f"channel {channel}"))
    try:
        catalog.boundary()
    except DAMAGE as error:
        found.append(finding_of(catalog, error, "boundary"))
    return {"run": name} | report.add(f"run {name}", found, f"run {name}")


def _compare(context: Context, report: Report, version: str, checkpoint: Path) -> dict[str, Any]:
    from weightsync.cli import look
    from weightsync.replica.verify import verify_directory

    record = look.resolve(context.catalog, version)
    with context.out.progress(f"{checkpoint}") as advance:
        found = list(verify_directory(context.catalog, record, checkpoint, progress=advance))
    name = _name(record.ref)
    return _version(record.ref) | report.add(f"{checkpoint} is not {name}", found, f"{checkpoint} is {name}, every byte")


def _image(context: Context, report: Report, version: str | None, image: Path) -> dict[str, Any]:
    from weightsync.cli import look
    from weightsync.replica.readers import open_image_readonly
    from weightsync.replica.verify import verify_image
    from weightsync.wiring import images

    catalog = context.catalog
    try:
        reader = open_image_readonly(image, wait_s=IMAGE_WAIT_S)
    except NotFound as error:
        raise NotFound(error.message, remedy=f"images of this user's subscribers lie in {str(images(context.settings))!r}") from error
    with reader:
        held = reader.version
        record = look.resolve(catalog, version) if version else catalog.manifest_of(held.version, held.manifest)
        found = list(verify_image(catalog, record, reader, threads=os.cpu_count() or 1))
    name = _name(record.ref)
    return _version(record.ref) | report.add(f"{image} is not {name}", found, f"{image} is {name}, every byte")


class Sample(NamedTuple):
    """So many versions, or such a share of them."""

    versions: int
    share: float

    def draw(self, refs: "Sequence[VersionRef]") -> "set[VersionRef]":
        """At least one of them, others each time."""
        wanted = self.versions or max(1, round(self.share * len(refs)))
        return set(sorted(refs, key=lambda _: jitter(1.0))[:wanted])


def _share(sample: str | None) -> Sample | None:
    """What `--sample` asks for. Raises `Invalid`."""
    if sample is None:
        return None
    digits, percent = sample.removesuffix("%"), sample.endswith("%")
    number = float(digits) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", digits) else 0.0
    if not 0 < number <= (100 if percent else MAX_SAMPLE) or (not percent and not number.is_integer()):
        raise Invalid(
            f"--sample {sample!r} is no number of versions and no share", remedy="give a number such as 20, or a share such as 5%"
        )
    return Sample(0 if percent else int(number), number / 100 if percent else 0.0)


def _rebuild(context: Context, report: Report, version: str | None, *, run_ok: bool, share: Sample | None) -> Iterator[dict[str, Any]]:
    from weightsync.cli import look
    from weightsync.cli.scratch import scratch_replica
    from weightsync.replica.verify import DAMAGE, finding_of, verify_records, verify_version

    catalog = context.catalog
    try:
        refs = [look.resolve(catalog, version).ref] if version else _committed(context)
    except DAMAGE:
        if run_ok:
            raise
        return  # reported already: without a history nobody knows what the versions are
    boundary = _boundary(catalog)
    drawn = share.draw(refs) if share else set(refs)
    with scratch_replica(_image_bytes(context, refs[-1])) as replica:
        for ref in refs:
            try:
                record = None if _gone(boundary, ref) else catalog.manifest_of(ref.version, ref.manifest)
            except Compacted:
                record = None
            except DAMAGE as error:
                yield _version(ref) | report.add(_name(ref), [finding_of(catalog, error, "manifest")], "", ref.version)
                continue
            if record is None:
                context.out.note(f"version {ref.version} was collected: not looked at")
                continue
            if ref in drawn:
                with context.out.progress(f"version {ref.version}") as advance:
                    found = list(verify_version(catalog, record, replica, progress=advance))
            else:
                found = list(verify_records(catalog, record))
            if boundary is not None and boundary.condemned(ref.version):  # what is held for a chain must stand; other ways may be gone
                found = [one for one in found if one.kind != Compacted.kind]
            fine = f"is whole: root {record.manifest.root[:16]}" if ref in drawn else "has all its records and objects (not rebuilt)"
            yield _version(ref) | {"rebuilt": ref in drawn} | report.add(_name(ref), found, f"{_name(ref)} {fine}", ref.version)


def _moved(catalog: "Catalog") -> set[str]:
    """Channels whose log says that they had a head: a second move follows one that stood."""
    parsed = (catalog.keys.parse_log(stat.key) for stat in catalog.store.list(catalog.keys.channels))
    return {found[0] for found in parsed if found is not None and found[1] > 1}


def _gone(boundary: "Boundary | None", ref: "VersionRef") -> bool:
    from weightsync.format.keys import version_name

    return boundary is not None and boundary.gone(version_name(ref.version))


def _boundary(catalog: "Catalog") -> "Boundary | None":
    """What was given up; None too where that cannot be read, which is reported already."""
    with suppress(WeightsyncError):
        return catalog.boundary()[0]
    return None


def _committed(context: Context) -> "list[VersionRef]":
    refs = context.catalog.committed()
    if not refs:
        context.catalog.run()
        raise NotFound(f"run {context.run!r} has no versions to verify", remedy="publish one with `weightsync publish`")
    return refs


def _image_bytes(context: Context, ref: "VersionRef") -> int:
    """Room that a version takes; 0 where its records are damaged, which is found out again and reported."""
    with suppress(WeightsyncError):
        return context.catalog.layout(context.catalog.manifest_of(ref.version, ref.manifest).manifest.layout).image_bytes
    return 0


def _name(ref: "VersionRef") -> str:
    return f"version {ref.version}"


def _version(ref: "VersionRef") -> dict[str, Any]:
    return {"version": ref.version, "manifest": ref.manifest}
