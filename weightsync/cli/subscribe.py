"""`weightsync subscribe`: the inference host's side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.options import CACHE, IMAGES, RUN, STORE, TRUST, verb
from weightsync.cli.signals import stop_event

if TYPE_CHECKING:
    from weightsync.subscriber.follow import Step


@verb(STORE, RUN, CACHE, IMAGES, TRUST)
def subscribe(
    context: Context,
    *,
    channel: Annotated[str, typer.Option("--channel", metavar="C", help="The channel to follow.")] = "latest",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write each version as DIR/<N>/ and point DIR/current to it.")
    ] = None,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="With --out: versions to keep in DIR.")] = 2,
    once: Annotated[bool, typer.Option("--once", help="Get the channel's version and end.")] = False,
    poll_s: Annotated[float, typer.Option("--poll-s", metavar="S", min=0.02, help="Mean seconds between looks at the channel.")] = 2.0,
) -> None:
    """Follows a channel and keeps a verified copy of its version.

    Downloads what leads from the held version to the new one, checks every byte, and switches only when all of it is right; whatever goes
    wrong, the old version is served on. SIGTERM ends it after the version in flight.

    Examples:
      1. Keep a directory of checkpoints up to date; engines load DIR/current
           weightsync subscribe --store s3://bucket/models --run tuning --out ./weights
      2. Only what has been promoted
           weightsync subscribe --store s3://bucket/models --run tuning --channel serving --out ./weights
      3. Once, in a start script
           weightsync subscribe --store s3://bucket/models --run tuning --out ./weights --once
    """
    if once:
        with (
            context.out.progress(channel) as advance,
            context.subscriber(channel=channel, out=out, keep=keep, progress=advance) as subscriber,
        ):
            step = subscriber.once()
        context.out.document(document(step, out))
        context.out.line(sentence(step, out))
        return
    with context.subscriber(channel=channel, out=out, keep=keep) as subscriber:
        context.out.note(f"following channel {channel} of run {context.run} in {context.store.url}")
        with stop_event() as stop:
            subscriber.run(stop, interval_s=poll_s, on_step=lambda step: _report(context, step, out))
        held = subscriber.version
        context.out.note(f"stopped; version {held.version if held else 'none'} is held")


def _report(context: Context, step: "Step", out: Path | None) -> None:
    if step.changed:
        context.out.event("version", sentence(step, out), **document(step, out))


def sentence(step: "Step", out: Path | None) -> str:
    """What a look led to, for people."""
    version = step.version.version if step.version else 0
    where = f", {out / str(version)}" if out else ""
    if step.update is None or not step.update.path.steps:
        return f"version {version} was held already{where}"
    took, fetched = words.seconds(step.update.seconds.total_s), words.size(step.update.bytes_fetched)
    return f"version {version}: {fetched} fetched, verified, {took}{where}"


def document(step: "Step", out: Path | None) -> dict[str, object]:
    """What a look led to, for scripts."""
    version = step.version.version if step.version else None
    found: dict[str, object] = {"version": version, "sequence": step.sequence, "changed": step.changed}
    found["manifest"] = step.version.manifest if step.version else None
    found["out"] = str(out / str(version)) if out and version else None
    if step.update is not None:
        update, seconds = step.update, step.update.seconds
        found |= {"bytes_fetched": update.bytes_fetched, "bytes_cached": update.bytes_cached, "seconds": seconds.total_s}
        found["phases_s"] = {"path": seconds.path_s, "fetch": seconds.fetch_s, "apply": seconds.apply_s, "mark": seconds.mark_s}
        found["path"] = [{"form": step.form.value, "base": step.base_version, "bytes": step.nbytes} for step in update.path.steps]
    return found
