"""The contract of an engine adapter.

    staged = engine.stage(change)                   # live weights are untouched; unknown names, shapes and dtypes are errors here
    applied = staged.apply(Mode.KEEP, limit_s=30)   # pause, write, read back, resume; or `staged.discard()`
    engine.sums() == expected                       # later, while it serves: proof of every live parameter

An adapter serves the old version or the new one and never a mix: where `apply` fails it has gone back and serves the old one, or it is
*dirty* and serves nothing until `reload` succeeds. `weightsync.testing.engine_contract` holds what every adapter must pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from weightsync.format.layout import Layout
from weightsync.format.refs import VersionRef


class Mode(StrEnum):
    """What becomes of requests in flight: they go on over the swap, are finished first, or are ended with a retryable answer."""

    KEEP = "keep"
    WAIT = "wait"
    ABORT = "abort"


class TensorChange(NamedTuple):
    """What changes in one tensor of the layout.

    `positions` are ascending lanes of the tensor (uint32, uint64 beyond 2^32 lanes), `values` their new bits as unsigned integers of the
    lane's width, `old` the bits before, in the same order. `positions` None: `values` are all lanes, a view of the image; `old` may be
    None where the base is not known.
    """

    tensor: int
    positions: NDArray[Any] | None
    values: NDArray[Any]
    old: NDArray[Any] | None

    @property
    def lanes(self) -> int:
        """How many lanes are written."""
        return len(self.values)


@dataclass(frozen=True)
class Change:
    """What leads an engine from `base` to `version`; read-only.

    `base` None: whatever it holds, and then `tensors` are all of the layout, whole. `sums` (uint64, by tensor number) are those of the
    whole new version. `image` is the directory of the host's replica, which holds `version` (`open_image_readonly`). `file` holds the
    changes for other processes of this host (`weightsync.engine.change.open_change`); `digest` identifies its content.
    `holds` says what the image holds where that is not `version`, in a change that goes back: the bits of a tensor are then those of the
    image with the values written over them (`weightsync.engine.change.tensor_bits`).
    """

    base: VersionRef | None
    version: VersionRef
    layout: Layout
    sums: NDArray[np.uint64]
    tensors: tuple[TensorChange, ...]
    image: Path
    file: Path | None = None
    digest: str | None = None
    holds: VersionRef | None = None

    @property
    def lanes(self) -> int:
        """How many lanes are written, over all tensors."""
        return sum(change.lanes for change in self.tensors)


class Applied(NamedTuple):
    """What an apply did. `written` and `read_back` count lanes; `opaque` names tensors that took the engine's own reload path."""

    version: VersionRef
    written: int
    read_back: int
    pause_s: float
    opaque: tuple[str, ...] = ()


class Staged(Protocol):
    """A change that is ready to be written. Exactly one of the two is called, once."""

    def apply(self, mode: Mode = Mode.KEEP, *, limit_s: float = 30.0, prove: bool = False) -> Applied:
        """Pauses, writes, reads every written position back, resumes; the pause ends after `limit_s` at the latest, whatever happens.

        `prove`: the sums of all live parameters are compared with the change's before it resumes. Raises `Dirty` where it is not certain
        that one version is whole, and then the engine serves nothing; after any other error the old version serves.
        """
        ...

    def discard(self) -> None:
        """Gives it up."""
        ...


class Engine(Protocol):
    """An adapter of one engine, with all its ranks. For one thread."""

    @property
    def version(self) -> VersionRef | None:
        """What it serves; None: unknown, or nothing."""
        ...

    def stage(self, change: Change) -> Staged:
        """Prepares `change` beside the live weights. Raises `Invalid` for what does not fit them, before anything is written."""
        ...

    def reload(self, change: Change, *, limit_s: float) -> Applied:
        """Loads everything from the image, by the engine's own path if it has one: the way out of doubt. `change` is a whole one."""
        ...

    def sums(self) -> Mapping[str, int]:
        """The sums of the live parameters, added over ranks, by tensor name of the layout; tensors it cannot see are missing."""
        ...

    def withdraw(self, reason: str) -> None:
        """Serves nothing from now on; whoever asks is told to come back, and why."""
        ...

    def admit(self) -> None:
        """Serves again after `withdraw`."""
        ...

    def close(self) -> None:
        """Lets go; the engine runs on."""
        ...
