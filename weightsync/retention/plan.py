"""From what a run holds to what its boundary says next, and from the boundary to what is deleted. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weightsync.format.keys import version_name, version_of_name
from weightsync.format.operators import Boundary
from weightsync.retention.chains import Chains, Edge, chains
from weightsync.retention.survey import COLLECTOR, Survey

MAX_MARKS = 50_000  # at once, the oldest first: the boundary is one record; the next run goes on
OWN_SNAPSHOT_FACTOR = 1.5


def unwanted(boundary: Boundary, survey: Survey, kept: Iterable[int]) -> list[str]:
    """Names that nothing wants: versions that do not stay, oldest first, then leftovers. What is condemned already is left out."""
    stay = set(kept)
    versions = [version_name(v) for v in sorted(survey.committed) if v not in stay and not boundary.condemned(v)]
    return versions + sorted(survey.leftovers)


def marked(boundary: Boundary, survey: Survey, kept: Iterable[int], now_ms: int) -> Boundary:
    """The boundary with what is unwanted marked: since when it was already, or from now on. Other marks are withdrawn."""
    names = unwanted(boundary, survey, kept)[:MAX_MARKS]
    return replace(boundary, marked={name: boundary.marked.get(name, now_ms) for name in names})


@dataclass(frozen=True)
class Sentence:
    """What is condemned next. `doomed`: names that are condemned anew; `chains`: what the versions that stand need of those that go."""

    boundary: Boundary
    doomed: tuple[str, ...]
    chains: Chains


def condemned(boundary: Boundary, survey: Survey, kept: Iterable[int], *, now_ms: int, grace_ms: int) -> Sentence:
    """Marks that are old enough and still unwanted are condemned, those of what is wanted again are withdrawn, the others wait on."""
    still = set(unwanted(boundary, survey, kept))
    waiting = {name: since for name, since in boundary.marked.items() if name in still}
    doomed = tuple(name for name, since in waiting.items() if since + grace_ms <= now_ms)
    going = {version_of_name(name) for name in doomed if name.startswith("versions/")}
    after = replace(
        boundary,
        marked={name: since for name, since in waiting.items() if name not in set(doomed)},
        versions=merged(boundary.versions, going),
    )
    names = {*boundary.names, *(name for name in doomed if not name.startswith("versions/"))}
    needed = needs(survey, [v for v in survey.committed if not after.condemned(v)])
    after = replace(after, names=(), held=needed.names)
    # What goes with its version need not be named.
    return Sentence(replace(after, names=tuple(sorted(name for name in names if not after.gone(name)))), doomed, needed)


def needs(survey: Survey, stand: Iterable[int], *more: Edge) -> Chains:
    """What the versions in `stand` need of others; what a boundary has given up is not among the survey's edges."""
    return chains(set(stand), (*survey.edges, *more))


def merged(ranges: Iterable[tuple[int, int]], numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ranges that cover `ranges` and `numbers`, ascending, none touching another."""
    found: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, *((n, n) for n in numbers)]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def deletable(boundary: Boundary, survey: Survey) -> list[str]:
    """Names that the boundary gives up and that have objects: first records, so that no reader starts on what is about to go."""
    names = [name for name in survey.objects if boundary.gone(name)]
    return sorted(names, key=lambda name: (not name.startswith(("versions/", "payloads/")), name))


def worthwhile(survey: Survey, kept: Mapping[int, object]) -> tuple[int, int] | None:
    """(version, expected bytes) of the snapshot that frees the most beyond its own bytes; None: none does.

    Where it would replace a collector's own snapshot it must free half as much again: each run would write a new one otherwise.
    """
    now = needs(survey, kept)
    best: tuple[int, int, int] | None = None
    for version in now.paths:
        record = survey.records.get(version)
        if record is None:
            continue
        then = needs(survey, kept, Edge("", 0, version, 0))
        cost = survey.snapshots.get(record.manifest.layout.digest, record.manifest.checkpoint_bytes)
        freed = now.nbytes - then.nbytes
        ours = any(not edge.base and edge.writer.startswith(COLLECTOR) for edge in now.bought - then.bought)
        if freed > cost * (OWN_SNAPSHOT_FACTOR if ours else 1) and (best is None or freed - cost > best[0]):
            best = (freed - cost, version, cost)
    return best[1:] if best else None
