"""A whole loop on this machine: hub, trainer and workers as processes, told apart by name, tended until the trainer is done."""

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from types import TracebackType
from typing import Any, Self

from weightsync.errors import Unavailable
from weightsync.rl.executors import Processes
from weightsync.rl.journal import read_journal
from weightsync.rl.service import LoopClient
from weightsync.rl.settings import LoopSettings, to_toml

TRAINER, HUB = "trainer", "hub"
WINDOW = 20  # steps that a reward is the mean of
MAX_FAILURES = 8  # starts of the trainer that led nowhere
WORKER_POLL_S = 0.2


class Loop:
    """A context manager; leaving it ends all processes."""

    def __init__(
        self,
        settings: LoopSettings,
        store_url: str,
        run: str,
        home: Path,
        *,
        steps: int | None = None,
        prefixes: Mapping[str, Sequence[str]] | None = None,
        stores: Mapping[str, str] | None = None,
        hubs: Mapping[str, str] | None = None,
        hub_port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """By region: `prefixes` put before a worker's command, `stores` and `hubs` that it is given instead. `environment` is of all."""
        self._settings, self._home = settings, home
        home.mkdir(parents=True, exist_ok=True)
        file = home / "settings.toml"
        if steps is not None:
            settings = replace(settings, steps=steps)
        file.write_text(to_toml(settings))
        self.hub = f"127.0.0.1:{hub_port or free_port()}"
        self.processes = Processes(home / "logs", environment=environment)
        me, at = [sys.executable, "-m", "weightsync", "rl"], ["--settings", str(file)]
        where = ["--run", run, "--settings", str(file)]
        self._commands: dict[str, list[str]] = {HUB: [*me, "hub", "--listen", self.hub, *at]}
        self._commands[TRAINER] = [*me, "train", *where, "--store", store_url, "--home", str(home), "--hub", self.hub]
        self._commands[TRAINER] += ["--cache", str(home / "cache" / TRAINER)]
        self.workers: dict[str, str] = {}  # region by name
        for place in settings.workers:
            for number in range(1, place.count + 1):
                name = f"{place.region}-{number}"
                self.workers[name] = place.region
                store, hub = (stores or {}).get(place.region, store_url), (hubs or {}).get(place.region, self.hub)
                command = [*(prefixes or {}).get(place.region, ()), *me, "work", *where, "--store", store, "--hub", hub, "--name", name]
                command += ["--region", place.region, "--journal", str(home / f"{name}.jsonl"), "--poll-s", str(WORKER_POLL_S)]
                command += ["--cache", str(home / "cache" / name), "--images", str(home / "images" / name)]
                self._commands[name] = command
        self._seen = 0

    def __enter__(self) -> Self:
        for name, command in self._commands.items():
            self.processes.start(name, command)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.processes.stop()

    @property
    def names(self) -> list[str]:
        """All parts."""
        return list(self._commands)

    @property
    def well(self) -> bool:
        """Whether the trainer came to its end."""
        return not self.processes.running(TRAINER)

    def tend(self) -> bool:
        """Starts again what died; whether there is still something to do."""
        self.processes.tend()
        stuck = self.processes.starts(TRAINER) > MAX_FAILURES and not self.steps()
        return self.processes.running(TRAINER) and not stuck

    def steps(self) -> list[Mapping[str, Any]]:
        """All steps so far; of one that was done again after a crash, the last."""
        return [row for _, row in sorted({row["step"]: row for row in read_journal(self._home / "trainer.jsonl") if "step" in row}.items())]

    def new_steps(self) -> list[dict[str, Any]]:
        """Those since the last call."""
        found = [dict(row) for row in self.steps() if row["step"] > self._seen]
        self._seen = found[-1]["step"] if found else self._seen
        return found

    def swaps(self) -> list[Mapping[str, Any]]:
        """All swaps of all workers."""
        return [row for name in self.workers for row in read_journal(self._home / f"{name}.jsonl")]

    def last_words(self) -> str:
        """What the trainer said last."""
        return self.processes.log_of(TRAINER)

    def summary(self) -> dict[str, Any]:
        """What a run came to. Lag is the hub's; it is asked while it is there."""
        steps, swaps = self.steps(), self.swaps()
        rewards = [row["metrics"].get("reward", 0.0) for row in steps] or [0.0]
        pauses = sorted(row["pause"] for row in swaps if "pause" in row) or [0.0]  # a swap that failed has none
        window = min(WINDOW, len(rewards))
        cuts = quantiles(pauses, n=100) if len(pauses) > 1 else [pauses[0]] * 99
        found: dict[str, Any] = {
            "reward_start": sum(rewards[:window]) / window,
            "reward_end": sum(rewards[-window:]) / window,
            "steps": steps[-1]["step"] if steps else 0,
            "versions": max((row["version"] for row in steps), default=0),
            "swaps": len(swaps),
            "swaps_proven": sum(bool(row.get("proven")) for row in swaps),
            "pause_p50_s": cuts[49],
            "pause_p99_s": cuts[98],
            "bytes_sent": sum(row["sent_bytes"] for row in steps),
            "bytes_full": sum(row["full_bytes"] for row in steps),
            "trainer_waiting": sum(row["waited_s"] for row in steps)
            / max(1e-9, sum(row["waited_s"] + row["learned_s"] + row["published_s"] for row in steps)),
        }
        return found | self._of_hub()

    def _of_hub(self) -> dict[str, Any]:
        client = LoopClient(self.hub)
        try:
            told = client.status()
        except Unavailable:
            return {"lag_max_versions": None, "lag_max_s": None}
        finally:
            client.close()
        return {
            "lag_max_versions": max((region.lag_max_versions for region in told.regions), default=0),
            "lag_max_s": max((region.lag_max_s for region in told.regions), default=0.0),
            "stale": told.stale,
            "groups": told.consumed,
            "idle": {one.worker: one.metrics.get("idle", 0.0) for one in told.workers},
        }


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
