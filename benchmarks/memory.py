"""Peak memory of the publisher and of the subscriber, each its own process, against the size of the model.

    python -m benchmarks.memory --sizes 100MB,400MB,1GB --output results.json

Each size is published twice (a snapshot, then a delta of one RL step) and fetched twice by a subscriber that keeps its image between
the runs.
The peak of a process is what the kernel keeps as its high-water mark; the parts say what it was made of.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import generate
from benchmarks.measure import circumstances
from benchmarks.units import parse_size
from weightsync.errors import WeightsyncError

POLL_S = 0.005
RUN = "memory"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where images of the weights live
FIELDS = {"VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "files", "RssShmem": "shared"}


class ChildFailed(WeightsyncError):
    """A measured command did not succeed."""


def _status(pid: int) -> dict[str, int]:
    """Bytes of each of FIELDS; empty once the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[field].split()[0]) * 1024 for field, name in FIELDS.items() if field in fields}


def peak(command: Sequence[str]) -> dict[str, Any]:
    """Run `command`; bytes of its peak and of the largest seen parts of it, and its wall time.

    The mark belongs to the new program's memory, not (as `ru_maxrss` would) to what its parent held when it forked.
    """
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    highest: dict[str, int] = {}
    while child.poll() is None:
        for name, value in _status(child.pid).items():
            highest[name] = max(highest.get(name, 0), value)
        time.sleep(POLL_S)
    output = child.communicate()[0]
    if child.returncode:
        raise ChildFailed(f"{' '.join(command)} ended with {child.returncode}: {output[-2000:]}")
    return {**highest, "seconds": round(time.perf_counter() - start, 3)}


def measure(nbytes: int, directory: Path) -> dict[str, Any]:
    """Both sides at one size, in `directory`."""
    generate.main(directory / "checkpoints", size=str(nbytes), steps=1, lr=1e-6)
    steps = sorted((directory / "checkpoints").iterdir())
    weightsync = [sys.executable, "-m", "weightsync"]
    where = ["--store", f"file://{directory / 'store'}", "--run", RUN]
    found: dict[str, Any] = {"nbytes": sum(path.stat().st_size for path in steps[0].iterdir())}
    with TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else directory) as images:
        there = ["--images", images, "--cache", str(directory / "there"), "--out", str(directory / "out")]
        for name, step in zip(("snapshot", "delta"), steps, strict=True):
            found[f"publish_{name}"] = peak([*weightsync, "publish", str(step), *where, "--cache", str(directory / "here")])
            found[f"subscribe_{name}"] = peak([*weightsync, "subscribe", *where, "--once", *there])
    return found


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="peak memory in MB, of it anonymous (neither image nor files)", title_justify="left")
    sides = ("publish_snapshot", "publish_delta", "subscribe_snapshot", "subscribe_delta")
    for column in ("model", *(side.replace("_", " ") for side in sides)):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(_mb(row["nbytes"]), *(f"{_mb(row[side]['peak'])}, {_mb(row[side]['anonymous'])}" for side in sides))
    return table


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.0f}"


def main(
    *,
    sizes: Annotated[str, typer.Option(help="of checkpoints, with commas between them")] = "100MB,400MB,1GB",
    output: Annotated[Path | None, typer.Option(help="write the results as JSON")] = None,
    scratch: Annotated[Path | None, typer.Option(help="where checkpoints and the store go; default: the temporary directory")] = None,
) -> None:
    """Measure each size and print a table."""
    rows = []
    for size in sizes.split(","):
        with TemporaryDirectory(dir=scratch) as directory:
            rows.append(measure(parse_size(size), Path(directory)))
    Console(width=110).print(_table(rows))
    if output:
        output.write_text(json.dumps({**circumstances(), "sizes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
