"""What a replica holds, and where: shared by `Replica` and its transitions."""

from collections.abc import Callable
from dataclasses import dataclass

from weightsync.format.digests import DigestTable
from weightsync.format.layout import Layout
from weightsync.replica.directory import PrivateDirectory
from weightsync.replica.image import Image
from weightsync.replica.journal import Journal
from weightsync.replica.locks import ReadersLock
from weightsync.replica.past import Past
from weightsync.replica.state import State


@dataclass(frozen=True)
class Held:
    """A verified version: what the state says, and what it names."""

    state: State
    layout: Layout
    table: DigestTable
    image: Image


@dataclass(frozen=True)
class Place:
    """Where it happens."""

    directory: PrivateDirectory
    readers: ReadersLock
    readers_wait_s: float
    past: Past


@dataclass(frozen=True)
class Passage:
    """A change in place that was marked, and whose journal is left to learn from: what it led from and to."""

    journal: Journal | None  # None: nothing changed
    older: State
    newer: State


Settle = Callable[[Held | None, str, Passage | None], None]  # what is held from now on; if nothing, why
