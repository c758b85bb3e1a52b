"""One TOML file for a run of the loop.

environment = "sort"        # sort, sort:8, arithmetic, gym:NAME, python
steps = 330
lag_versions = 1

[[workers]]
region = "eu"
"""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from math import inf, isfinite
from pathlib import Path
from typing import Any

from weightsync.config import read_text
from weightsync.engine.api import Mode
from weightsync.errors import Invalid
from weightsync.rl.book import Work
from weightsync.rl.lag import Bound

_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # names files and processes


@dataclass(frozen=True)
class WorkerPlace:
    """A rollout worker. `count`: how many alike."""

    region: str = "home"
    count: int = 1


@dataclass(frozen=True)
class LoopSettings:
    """All of a run. `imitate`: supervised examples of the warm start; `environment_s`: what an environment lets one wait."""

    environment: str = "sort"
    steps: int = 330
    prompts: int = 16
    samples: int = 16
    loss: str = "dppo"
    learning_rate: float = 1.5e-4
    imitate: int = 90 * 64
    lag_versions: int = 1
    lag_s: float = inf
    mode: Mode = Mode.KEEP
    lease_s: float = 20.0
    environment_s: float = 0.0
    keep_checkpoints: int = 3
    records: bool = True
    seed: int = 0
    workers: tuple[WorkerPlace, ...] = field(default=(WorkerPlace("east"), WorkerPlace("west")))

    @property
    def work(self) -> Work:
        """For the hub."""
        return Work(self.environment, self.samples, self.prompts, Bound(self.lag_versions, self.lag_s), self.lease_s, self.seed)


def read_settings(path: Path | None) -> LoopSettings:
    """The settings of a file; the defaults for None. Raises `Invalid` naming what is wrong."""
    if path is None:
        return LoopSettings()
    try:
        table = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{str(path)!r} is no TOML: {error}", remedy="correct it") from None
    return settings_of(table, str(path))


def settings_of(table: dict[str, Any], what: str) -> LoopSettings:
    """From a table."""
    table = dict(table)
    places = table.pop("workers", None)
    if places is not None:
        if not isinstance(places, list) or not places:
            raise Invalid(f"{what}: workers is no list of tables", remedy='write [[workers]] and region = "NAME"')
        table["workers"] = tuple(WorkerPlace(**_checked(WorkerPlace(), place, f"{what}: workers")) for place in places)
    plain = {name: value for name, value in table.items() if name != "workers"}
    found = LoopSettings(**_checked(LoopSettings(), plain, what), **({"workers": table["workers"]} if places is not None else {}))
    for name in ("steps", "prompts", "samples"):
        if getattr(found, name) < 1:
            raise Invalid(f"{what}: {name} is {getattr(found, name)}", remedy="give 1 or more")
    if found.samples < 2 or found.lag_versions < 0 or not found.lag_s > 0 or not 0 < found.lease_s < inf:
        raise Invalid(f"{what}: a group needs 2 samples or more, lags and leases are not negative", remedy="correct it")
    if not 0 < found.learning_rate < inf or not 0 <= found.environment_s < inf or found.imitate < 0:
        raise Invalid(f"{what}: learning_rate is above 0, environment_s and imitate are not below it", remedy="correct it")
    _check_places(found.workers, what)
    return found


def _check_places(places: Sequence[WorkerPlace], what: str) -> None:
    regions = [place.region for place in places]
    if twice := sorted({region for region in regions if regions.count(region) > 1}):
        raise Invalid(f"{what}: region {twice[0]!r} has more than one entry", remedy="give one entry per region; its count says how many")
    for place in places:
        if not _REGION.fullmatch(place.region) or place.count < 1:
            raise Invalid(
                f"{what}: {place.count} workers in region {place.region!r}",
                remedy="1 or more; a region is named by letters, digits, '.', '_' and '-', and begins with a letter or a digit",
            )


def to_toml(settings: LoopSettings) -> str:
    """As a file that reads as the same."""
    lines = []
    for name, value in asdict(settings).items():
        if name == "workers" or (isinstance(value, float) and not isfinite(value)):
            continue
        lines.append(f"{name} = {_word(value)}")
    for place in settings.workers:
        lines += ["", "[[workers]]", f"region = {_word(place.region)}", f"count = {place.count}"]
    return "\n".join(lines) + "\n"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(str(value)) if isinstance(value, str) else repr(value)


def _checked(default: Any, table: Any, what: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise Invalid(f"{what} is no table")
    known = {one.name: type(getattr(default, one.name)) for one in fields(default)}
    found: dict[str, Any] = {}
    for name, value in table.items():
        kind = known.get(name)
        if kind is None:
            raise Invalid(f"{what}: there is no setting {name!r}", remedy=f"known: {', '.join(sorted(known))}")
        if kind is Mode and value in {mode.value for mode in Mode}:
            found[name] = Mode(value)
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = float(value)
        elif type(value) is kind:
            found[name] = value
        else:
            raise Invalid(f"{what}: {name} is {value!r}", remedy=f"give {kind.__name__}")
    return found
