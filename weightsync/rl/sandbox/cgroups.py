"""Control groups, version 1 or 2, that bound what all processes of a sandbox use together. Only the standard library.

    groups = Groups.open("weightsync-17-5")      # None where this process may not make any: other limits hold, per process
    group = groups.take()
    group.limit(memory_bytes=…, processes=…)
    group.join()                               # by the process that is bounded, with all its descendants

Groups lie below the one this process is in, so that its own bounds hold for its sandboxes too. They are used again once they are empty.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PROCESSES, MEMORY = "pids", "memory"
PROCS = "cgroup.procs"
NAME = re.compile(r"weightsync-(\d+)-\d+-\d+")  # the process that a group was made for


@dataclass
class Group:
    """One directory for each controller. `starting` is the process that is about to join it."""

    places: Mapping[str, Path]
    version: int
    starting: int | None = None

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Bounds what is in it. Raises `OSError`."""
        if MEMORY in self.places and self.version == 2:
            self._write("memory.max", memory_bytes)
            self._write("memory.swap.max", 0)
        elif MEMORY in self.places:
            self._write("memory.memsw.limit_in_bytes", -1)  # which may never be below the next one, also when that is raised
            self._write("memory.limit_in_bytes", memory_bytes)
            self._write("memory.memsw.limit_in_bytes", memory_bytes)
        if PROCESSES in self.places:
            (self.places[PROCESSES] / "pids.max").write_text(str(processes))

    def _write(self, name: str, value: int) -> None:
        """Kernels that do not account for swap have no bounds of it."""
        file = self.places[MEMORY] / name
        if file.exists():
            file.write_text(str(value))

    def join(self) -> None:
        """Moves the calling process into it. Raises `OSError`."""
        for place in set(self.places.values()):
            (place / PROCS).write_text("0")

    def kills_file(self) -> int | None:
        """A descriptor of the file that counts processes killed for memory; see `kills`. None without that controller."""
        if MEMORY not in self.places:
            return None
        return os.open(self.places[MEMORY] / ("memory.events" if self.version == 2 else "memory.oom_control"), os.O_RDONLY | os.O_CLOEXEC)

    @property
    def empty(self) -> bool:
        """Whether no process is in it, or on its way."""
        return self.starting is None and not any((place / PROCS).read_text() for place in set(self.places.values()))

    def remove(self) -> None:
        """Its directories; those that are still in use stay."""
        for place in set(self.places.values()):
            with suppress(OSError):
                place.rmdir()


def kills(descriptor: int) -> int:
    """How often the kernel has killed a process of the group for memory."""
    for line in os.pread(descriptor, 4096, 0).decode("ascii", "replace").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


class Groups:
    """Groups by the name `prefix` (weightsync, the process they are for, a number) and a number, made as they are needed."""

    def __init__(self, parents: Mapping[str, Path], version: int, prefix: str) -> None:
        self._parents, self._version, self._prefix = parents, version, prefix
        self._groups: list[Group] = []

    @classmethod
    def open(cls, prefix: str) -> "Groups | None":
        """Where this process may make some; None otherwise."""
        for parents, version in _candidates():
            _sweep(parents)
            groups = cls(parents, version, prefix)
            try:
                groups.take().limit(1 << 30, 64)
            except OSError:
                groups.close()
                continue
            return groups
        return None

    @property
    def controllers(self) -> tuple[str, ...]:
        """What they bound: `memory`, `pids` or both."""
        return tuple(sorted(self._parents))

    def take(self) -> Group:
        """One that nothing is in. Raises `OSError`."""
        for group in self._groups:
            if group.empty:
                return group
        while True:
            places = {name: parent / f"{self._prefix}-{len(self._groups)}" for name, parent in self._parents.items()}
            for place in set(places.values()):
                place.mkdir(exist_ok=True)  # of a warm process that was killed; what it left running counts until it ends
            group = Group(places, self._version)
            self._groups.append(group)
            if group.empty:
                return group

    def started(self, process: int) -> None:
        """`process` has joined its group, and the descendants that it left there count."""
        for group in self._groups:
            if group.starting == process:
                group.starting = None

    def close(self) -> None:
        """Removes all that are empty."""
        for group in self._groups:
            group.remove()


def _sweep(parents: Mapping[str, Path]) -> None:
    """Removes groups whose process was killed before it could do so."""
    for parent in set(parents.values()):
        for place in parent.glob("weightsync-*"):
            found = NAME.fullmatch(place.name)
            if found and not Path(f"/proc/{found[1]}").exists():
                with suppress(OSError):
                    place.rmdir()


def _candidates() -> list[tuple[dict[str, Path], int]]:
    """Parents by controller: those of version 1 that are there, else the one of version 2."""
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    first = {
        name: ROOT / name / path.lstrip("/")
        for _, names, path in own
        for name in names.split(",")
        if name in {PROCESSES, MEMORY} and (ROOT / name).is_dir()
    }
    found = [(first, 1)] if first else []
    unified = next((path for number, names, path in own if number == "0" and not names), None)
    if unified is not None and not first:
        place = ROOT / unified.lstrip("/")
        controllers = place / "cgroup.subtree_control"
        if controllers.is_file():
            usable = set(controllers.read_text().split()) & {PROCESSES, MEMORY}
            if usable:
                found.append((dict.fromkeys(usable, place), 2))
    return found
