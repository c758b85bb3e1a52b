"""`weightsync gc`: throw away what nobody needs."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.durations import milliseconds
from weightsync.cli.options import KEY, RUN, STORE, TRUST, verb

if TYPE_CHECKING:
    from weightsync.retention.collect import Outcome

SHOWN = 20  # versions of each kind, for people


@verb(STORE, RUN, TRUST, KEY)
def gc(
    context: Context,
    *,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="Keep the N highest version numbers.")],
    hourly: Annotated[int, typer.Option("--hourly", metavar="H", min=0, help="Keep one version of each of the last H hours.")] = 0,
    daily: Annotated[int, typer.Option("--daily", metavar="D", min=0, help="Keep one version of each of the last D days (UTC).")] = 0,
    grace: Annotated[str, typer.Option("--grace", metavar="TIME", help="From mark to deletion, such as 24h; 0s: at once.")] = "24h",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go, and why the rest stays.")] = False,
) -> None:
    """Collects versions that nobody needs any more.

    Kept are the N highest numbers, what pins, channels and leases hold, one per hour and day where asked for, and everything that their
    chains need. Other versions are marked, refused from then on, and deleted by a run that comes --grace later. Where a long chain is kept
    for its end alone, a snapshot is written first. Safe beside publishers, readers and other collectors; may be killed and run again.

    Examples:
      1. What would go?
           weightsync gc --store s3://bucket/models --run tuning --keep 20 --dry-run
      2. Every night
           weightsync gc --store s3://bucket/models --run tuning --keep 100 --hourly 48 --daily 30 --grace 24h
      3. At once, when nobody is at work
           weightsync gc --store s3://bucket/models --run tuning --keep 10 --grace 0s
    """
    from weightsync.cli.scratch import scratch_replica
    from weightsync.retention.collect import Collector
    from weightsync.retention.policy import Policy

    policy = Policy(keep, hourly, daily, milliseconds(grace, "--grace"))
    with context.out.busy("collecting"):
        outcome = Collector(context.catalog, policy, scratch=scratch_replica).run(dry=dry_run)
    _tell(context, outcome, policy.grace_ms)
    context.out.document(_document(outcome))


def _tell(context: Context, outcome: "Outcome", grace_ms: int) -> None:
    out, would = context.out, "would be " if outcome.dry else ""
    for version, why in list(outcome.kept.items())[-SHOWN:]:
        out.line(f"keep    {version}: {'; '.join(why)}")
    for version, needs in list(outcome.held.items())[-SHOWN:]:
        out.line(f"hold    {version}: refused, but the chain of version {needs} leads through it")
    for version, since_ms in list(outcome.waiting.items())[-SHOWN:]:
        out.line(f"wait    {version}: {would}marked, refused, and deleted after {_stamp(since_ms + grace_ms)}")
    for version in outcome.condemned[-SHOWN:]:
        out.line(f"go      {version}: {would}gone for good")
    for name in outcome.leftovers[-SHOWN:]:
        out.line(f"go      {name}: left over from a writer that never committed it")
    for version in outcome.broken:
        out.line(f"BROKEN  {version}: cannot be rebuilt; run `weightsync verify`")
    if outcome.snapshot is not None:
        out.line(f"a snapshot of version {outcome.snapshot[0]} {would or 'was '}written: {words.size(outcome.snapshot[1])}")
    for note in outcome.notes:
        out.note(note)
    counts = (
        f"{words.count(len(outcome.kept), 'version')} kept, {len(outcome.held)} held for their chains "
        f"({words.size(outcome.held_bytes)}), {len(outcome.waiting)} waiting"
    )
    out.line(f"{counts}; {words.count(outcome.objects, 'object')} {would}deleted, {words.size(outcome.nbytes)}")


def _document(outcome: "Outcome") -> dict[str, Any]:
    return {
        "dry_run": outcome.dry,
        "kept": [{"version": version, "why": list(why)} for version, why in outcome.kept.items()],
        "held": [{"version": version, "for": needs} for version, needs in outcome.held.items()],
        "held_bytes": outcome.held_bytes,
        "waiting": [{"version": version, "since": _stamp(ms)} for version, ms in outcome.waiting.items()],
        "condemned": list(outcome.condemned),
        "gone": [list(pair) for pair in outcome.gone],
        "leftovers": list(outcome.leftovers),
        "withdrawn": list(outcome.withdrawn),
        "broken": list(outcome.broken),
        "snapshot": None if outcome.snapshot is None else {"version": outcome.snapshot[0], "bytes": outcome.snapshot[1]},
        "objects_deleted": outcome.objects,
        "bytes_deleted": outcome.nbytes,
        "uploads_aborted": outcome.uploads,
        "notes": list(outcome.notes),
    }


def _stamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
