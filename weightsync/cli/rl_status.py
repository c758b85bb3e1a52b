"""`weightsync rl status`: how a run of the loop goes."""

from typing import Annotated, Any

import typer

from weightsync.cli.context import Context
from weightsync.cli.options import verb


@verb()
def status(
    context: Context,
    *,
    hub: Annotated[str, typer.Option("--hub", metavar="HOST:PORT", help="Where the hub is.")] = "127.0.0.1:7500",
) -> None:
    """Says how a run goes: step, reward, queue, lag by region, workers.

    Examples:
      1. Once
           weightsync rl status --hub 10.0.0.5:7500
    """
    from weightsync.cli.rl_parts import needs_the_loop

    with needs_the_loop():
        from google.protobuf.json_format import MessageToDict

        from weightsync.rl.service import LoopClient

    client = LoopClient(hub)
    try:
        found = client.status()
    finally:
        client.close()
    document: dict[str, Any] = MessageToDict(found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    for name in ("step", "version", "consumed", "queued", "leased", "stale", "duplicates", "expired"):
        document[name] = int(document[name])  # 64-bit numbers are strings in protobuf's JSON
    context.out.document(document)
    out = context.out
    reward = found.metrics.get("reward")
    out.line(f"step {found.step}, version {found.version}" + (f", reward {reward:.3f}" if reward is not None else ""))
    out.line(f"groups: {found.consumed} consumed, {found.queued} queued, {found.leased} being made; {found.stale} came too late")
    for region in found.regions:
        lag = f"lag at most {region.lag_max_versions} versions, {region.lag_max_s:.1f} s; mean {region.lag_mean_versions:.2f}"
        out.line(f"  {region.region:<12} {region.groups} groups, {lag}")
    for one in found.workers:
        idle = f", idle {one.metrics['idle']:.0%}" if "idle" in one.metrics else ""
        out.line(f"  {one.worker:<12} {one.region}, version {one.version}, {one.working_on} tasks, heard {one.silent_s:.1f} s ago{idle}")
