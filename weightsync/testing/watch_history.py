"""What watchers saw, and whether a watch kept its promises: pure functions over recorded histories.

Each check returns what it found wrong, in words; nothing found is an empty list. `truth` is the channel's history as the store has it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from weightsync.format.moves import Move

MOST = 20  # findings that are worth reading


@dataclass(frozen=True)
class Connected:
    """A stream was opened, asking for what comes after this sequence."""

    after: int


@dataclass(frozen=True)
class Moved:
    """An event. `move` None: it does not match its digest, or cannot be read."""

    sequence: int
    digest: str
    move: Move | None


@dataclass(frozen=True)
class Bookmark:
    """The server says that nothing is missing up to here."""

    sequence: int


@dataclass(frozen=True)
class Interrupted:
    """The stream ended. `resume`: where the server said to go on, if it did."""

    resume: int | None = None


Entry = Connected | Moved | Bookmark | Interrupted


@dataclass
class History:
    """One watcher over all its streams, in the order of time."""

    name: str
    entries: list[Entry] = field(default_factory=list)

    @property
    def position(self) -> int:
        """The last sequence delivered; where it started before the first."""
        for entry in reversed(self.entries):
            if isinstance(entry, Moved):
                return entry.sequence
        return next((entry.after for entry in self.entries if isinstance(entry, Connected)), 0)

    def moved(self) -> Iterator[Moved]:
        """All events."""
        return (entry for entry in self.entries if isinstance(entry, Moved))


Truth = Mapping[int, Moved]
Check = Callable[[History, Truth], Iterator[str]]


def ordered(history: History, _truth: Truth) -> Iterator[str]:
    """Sequences rise on each stream."""
    last = 0
    for entry in history.entries:
        if isinstance(entry, Connected):
            last = 0
        elif isinstance(entry, Moved):
            if entry.sequence <= last:
                yield f"{entry.sequence} came after {last}"
            last = entry.sequence


def unique(history: History, _truth: Truth) -> Iterator[str]:
    """No event comes twice, over all streams."""
    seen: set[int] = set()
    for event in history.moved():
        if event.sequence in seen:
            yield f"{event.sequence} came twice"
        seen.add(event.sequence)


def reliable(history: History, truth: Truth) -> Iterator[str]:
    """No event is left out, from the start to the end of the truth."""
    seen = {event.sequence for event in history.moved()}
    start = next((entry.after for entry in history.entries if isinstance(entry, Connected)), 0)
    for sequence in truth:
        if sequence > start and sequence not in seen:
            yield f"{sequence} never came"


def atomic(history: History, truth: Truth) -> Iterator[str]:
    """Every event is one whole move, the one that the store has."""
    for event in history.moved():
        if event.move is None or event != truth.get(event.sequence):
            yield f"{event.sequence} is not the move that the store has"


def resumable(history: History, _truth: Truth) -> Iterator[str]:
    """A stream goes on exactly after the sequence it was asked for, which is where the one before ended; the server knew that too."""
    expected: int | None = None
    position: int | None = None
    for entry in history.entries:
        match entry:
            case Connected(after):
                if position is not None and after != position:
                    yield f"a stream was opened after {after}, not after {position}"
                position = expected = after
            case Moved(sequence):
                if expected is not None and sequence != expected + 1:
                    yield f"a stream after {expected} began with {sequence}"
                position, expected = sequence, None
            case Interrupted(resume):
                # The event that was being sent may still have come; what was sent last may be lost on the way.
                if resume is not None and position is not None and resume < position - 1:
                    yield f"the server said to go on after {resume}, but {position} had come"
            case _:
                pass


def bookmarkable(history: History, _truth: Truth) -> Iterator[str]:
    """A bookmark says what was delivered: everything up to it, and nothing at or below it comes later."""
    position = marked = 0
    for entry in history.entries:
        match entry:
            case Connected(after):
                position, marked = after, 0
            case Moved(sequence):
                if sequence <= marked:
                    yield f"{sequence} came after the bookmark {marked}"
                position = sequence
            case Bookmark(sequence):
                if sequence != position:
                    yield f"bookmark {sequence} came when {position} had been delivered"
                marked = sequence
            case _:
                pass


CHECKS: Mapping[str, Check] = {
    "ordered": ordered,
    "unique": unique,
    "reliable": reliable,
    "atomic": atomic,
    "resumable": resumable,
    "bookmarkable": bookmarkable,
}


def violations(histories: Sequence[History], truth: Truth) -> dict[str, list[str]]:
    """By promise, what was broken and by whom."""
    found: dict[str, list[str]] = {name: [] for name in CHECKS}
    for name, check in CHECKS.items():
        for history in histories:
            for finding in check(history, truth):
                if len(found[name]) < MOST:
                    found[name].append(f"{history.name}: {finding}")
    return found
