"""`weightsync subscribe`: the inference host's side."""

import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from weightsync.cli import words
from weightsync.cli.context import Context
from weightsync.cli.engine_flags import engine_urls, kinds, swap_settings
from weightsync.cli.options import CACHE, IMAGES, LOG_FORMAT, METRICS, NAME, POLL, REGION, RUN, SERVER, STORE, TRUST, verb
from weightsync.errors import Invalid

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from weightsync.engine.swap import SwapSettings
    from weightsync.replica.update import Progress
    from weightsync.subscriber.follow import Step, Subscriber


@verb(STORE, RUN, CACHE, IMAGES, TRUST, POLL, *SERVER, NAME, REGION, METRICS, LOG_FORMAT)
def subscribe(
    context: Context,
    *,
    channel: Annotated[
        str | None, typer.Option("--channel", metavar="C", help="The channel to follow; default latest. [WEIGHTSYNC_CHANNEL]")
    ] = None,
    version: Annotated[int | None, typer.Option("--version", metavar="N", min=1, help="Serve this version, whatever channels say.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write each version as DIR/<N>/ and point DIR/current to it. [WEIGHTSYNC_OUT]"),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="With --out or dir://: versions to keep there; default 2.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            metavar="URL",
            help="Feed vllm+http://HOST:PORT, sglang+http://HOST:PORT or dir://PATH; may be repeated. [WEIGHTSYNC_ENGINE]",
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="MODE", help="Requests in flight: keep (default), wait for them, or abort them.")
    ] = None,
    prove: Annotated[
        str | None,
        typer.Option("--prove", metavar="WHEN", help="Sums of all live weights: while-serving (default), or before-resume, in the pause."),
    ] = None,
    pause_limit: Annotated[
        str | None, typer.Option("--pause-limit", metavar="TIME", help="A pause ends after it, whatever happens; default 30s.")
    ] = None,
    adopt: Annotated[
        Path | None,
        typer.Option("--adopt", metavar="CKPT", help="A checkpoint on this host that may be a published version: it saves a download."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Get the channel's version and end.")] = False,
) -> None:
    """Follows a channel and keeps a verified copy of its version.

    Downloads what leads from the held version to the new one, checks every byte, and switches only when all of it is right; whatever goes
    wrong, the old version is served on. SIGTERM ends it after the version in flight.

    With --engine it changes running engines: staged beside the live weights, written in a short pause, read back, and proven by the sums
    of all live weights. Several engines change together or not at all. One whose weights are in doubt serves nothing until it is healed.

    With --server it looks as soon as the control plane says that there is news, and reports what it does; without, or while that is
    away, it looks every few seconds. /readyz (--metrics) says 200 while it serves what the channel demands.

    Examples:
      1. Keep a directory of checkpoints up to date; engines load DIR/current
           weightsync subscribe --store s3://bucket/models --run tuning --out ./weights
      2. Only what has been promoted
           weightsync subscribe --store s3://bucket/models --run tuning --channel serving --out ./weights
      3. Once, in a start script
           weightsync subscribe --store s3://bucket/models --run tuning --out ./weights --once
      4. Into two running engines, proven before they answer again
           weightsync subscribe --engine vllm+http://127.0.0.1:8000 --engine vllm+http://127.0.0.1:8001 --prove before-resume
      5. As a service
           weightsync subscribe --out ./weights --server cp:7443 --region eu --metrics 9100 --log-format json --json
    """
    settings = context.settings
    if version is not None and channel is not None:
        raise Invalid("a channel and a version were given", remedy="give one of them")
    channel = channel or settings.channel
    out, keep = out or settings.out, keep or settings.keep
    urls = engine_urls(engine, settings.engine)
    target = Target(out, keep, urls, swap_settings(urls, mode, prove, pause_limit))
    if adopt is not None:
        _adopt(context, channel, version, adopt)
    if once:
        with (
            context.out.progress(channel) as advance,
            target.subscriber(context, channel, version, progress=advance) as subscriber,
        ):
            step = subscriber.once()
        context.out.document(document(step, out))
        context.out.line(sentence(step, out))
        return
    _follow(context, channel, version, target)


class Target(NamedTuple):
    """Where versions go: a directory, engines, both, or only the image."""

    out: Path | None
    keep: int
    engines: tuple[str, ...]
    swap: "SwapSettings | None"

    @property
    def kind(self) -> str:
        """For the fleet."""
        return kinds(self.engines) or ("directory" if self.out else "image")

    def subscriber(
        self, context: Context, channel: str, version: int | None, progress: "Progress | None" = None
    ) -> "AbstractContextManager[Subscriber]":
        """A subscriber that feeds it."""
        return context.subscriber(
            channel=channel, version=version, out=self.out, keep=self.keep, engines=self.engines, swap=self.swap, progress=progress
        )


def _follow(context: Context, channel: str, version: int | None, target: Target) -> None:
    from weightsync.daemon.subscribe import Follower, FollowSettings
    from weightsync.telemetry import names
    from weightsync.telemetry.facts import FIXED

    settings = context.settings
    followed = channel if version is None else f"{FIXED}{version}"
    out = target.out
    if target.kind == "image":
        context.out.note("note: without --out or --engine no checkpoint is written; only the image is kept (--images)")
    follow = FollowSettings(
        context.run,
        followed,
        settings.name or _host_name(),
        settings.region,
        engine=target.kind,
        interval_s=settings.poll_s,
        spread_s=settings.spread_s,
    )
    with (
        context.process("subscriber", names.SUBSCRIBER) as process,
        target.subscriber(context, channel, version) as subscriber,
    ):
        context.out.note(f"following {followed} of run {context.run} in {context.store.url}")
        plane, limits = context.plane(), context.thresholds
        Follower(process, subscriber, follow, plane=plane, on_step=lambda step: _report(context, step, out), limits=limits).run()
        served = subscriber.served
    context.out.note(f"stopped; {f'version {served.version} is held' if served else 'no version was served'}")


def _adopt(context: Context, channel: str, version: int | None, checkpoint: Path) -> None:
    with context.out.busy(f"comparing {checkpoint} with what was published"):
        found = context.adopt(checkpoint, channel=channel, version=version)
    context.out.note(f"{checkpoint} is version {found}" if found else f"note: {checkpoint} is no version that was published")


def _host_name() -> str:
    """The host's, with what names may not have replaced."""
    return re.sub(r"[^A-Za-z0-9._-]|\.(?=\.)", "-", platform.node())[:128].lstrip("._-") or "subscriber"


def _report(context: Context, step: "Step", out: Path | None) -> None:
    if step.changed:
        context.out.event("version", sentence(step, out), **document(step, out))


def sentence(step: "Step", out: Path | None) -> str:
    """What a look led to, for people."""
    version = step.version.version if step.version else 0
    where = f", {out / str(version)}" if out else ""
    where += f", engine paused {words.seconds(step.phases['pause'])}" if "pause" in step.phases else ""
    if step.update is None or not step.update.path.steps:
        return f"version {version} was held already{f', now written to {out / str(version)}' if out and step.delivered else where}"
    took, fetched = words.seconds(step.update.seconds.total_s), words.size(step.update.bytes_fetched)
    return f"version {version}: {fetched} fetched, verified, {took}{where}"


def document(step: "Step", out: Path | None) -> dict[str, object]:
    """What a look led to, for scripts."""
    version = step.version.version if step.version else None
    found: dict[str, object] = {"version": version, "sequence": step.sequence, "changed": step.changed}
    found["manifest"] = step.version.manifest if step.version else None
    found["out"] = str(out / str(version)) if out and version else None
    found["engine_s"] = dict(step.phases)
    if step.update is not None:
        update, seconds = step.update, step.update.seconds
        found |= {"bytes_fetched": update.bytes_fetched, "bytes_cached": update.bytes_cached, "seconds": seconds.total_s}
        found["phases_s"] = {"path": seconds.path_s, "fetch": seconds.fetch_s, "apply": seconds.apply_s, "mark": seconds.mark_s}
        found["path"] = [{"form": step.form.value, "base": step.base_version, "bytes": step.nbytes} for step in update.path.steps]
    return found
