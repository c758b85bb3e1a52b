"""Records about a run as a whole: what it is, what is pinned, leased, marked and condemned."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from weightsync.errors import Corrupt
from weightsync.format import canonical
from weightsync.format.envelope import Envelope
from weightsync.format.fields import Fields
from weightsync.format.keys import version_name, version_of_name
from weightsync.format.limits import FORMAT_VERSION
from weightsync.format.refs import WRITE_ID


def _open(envelope: Envelope, kind: str, run: str) -> Fields:
    fields = Fields(envelope.value(kind), kind)
    fields.constant("kind", kind)
    fields.constant("format", FORMAT_VERSION)
    found = fields.text("run")
    if found != run:
        raise Corrupt(f"a {kind} record of run {found!r} stands in run {run!r}")
    return fields


@dataclass(frozen=True)
class Run:
    """`run.json`. `trusted` names keys; the keys themselves come from local configuration."""

    run: str
    run_id: str
    model: str
    created_ms: int
    trusted: tuple[str, ...] = ()

    def to_body(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "created_ms": self.created_ms,
                "format": FORMAT_VERSION,
                "kind": "run",
                "model": self.model,
                "run": self.run,
                "run_id": self.run_id,
                "trusted": list(self.trusted),
            }
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope, *, run: str) -> "Run":
        """Reads the record of this run."""
        fields = _open(envelope, "run", run)
        run_id, model, created_ms = fields.hex("run_id", WRITE_ID), fields.text("model"), fields.integer("created_ms")
        trusted = fields.array("trusted")
        fields.done()
        if not all(isinstance(name, str) for name in trusted):
            raise Corrupt("a trusted key of the run is not named by text")
        return cls(run, run_id, model, created_ms, tuple(trusted))


@dataclass(frozen=True)
class Boundary:
    """What may no longer be relied on. `marked` maps a name to when it was marked (ms); marks may be withdrawn.

    `versions` are condemned ranges (first, last), `names` other condemned names; what they cover only grows. Everything of a condemned
    version goes, but for the payloads in `held`, with the manifest and leaves of their versions: a kept version's chain leads through
    them. `held` never regains a name. A name below a condemned version need not stand in `names`.
    A name is `versions/<N>`, `payloads/<N>/<base>-<writer>` (record and shards) or `digests/<writer>-<N>`.
    """

    run: str
    write_id: str
    marked: dict[str, int] = field(default_factory=dict)
    versions: tuple[tuple[int, int], ...] = ()
    names: tuple[str, ...] = ()
    policy: dict[str, Any] = field(default_factory=dict)
    held: tuple[str, ...] = ()

    def condemned(self, version: int) -> bool:
        """Whether `version` is gone for good: nobody may ask for it, even where its objects serve a kept chain."""
        return any(first <= version <= last for first, last in self.versions)

    def hit(self, version: int) -> bool:
        """Whether `version` is condemned or marked to be."""
        return self.condemned(version) or version_name(version) in self.marked

    def hit_name(self, name: str) -> bool:
        """Whether the payload or leftover called `name` is condemned or marked."""
        return name in self.marked or self.gone(name)

    def gone(self, name: str) -> bool:
        """Whether the objects called `name` may be deleted, now and at any later time."""
        if name in self._names:
            return True
        version = version_of_name(name)
        return self.condemned(version) and not self.holds(name)

    def holds(self, name: str) -> bool:
        """Whether a kept chain needs the objects called `name` of a condemned version."""
        if name in self._held:
            return True
        return not name.startswith("payloads/") and version_of_name(name) in self._held_versions

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def _held(self) -> frozenset[str]:
        return frozenset(self.held)

    @cached_property
    def _held_versions(self) -> frozenset[int]:
        return frozenset(map(version_of_name, self.held))

    def to_body(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "format": FORMAT_VERSION,
                "held": list(self.held),
                "kind": "boundary",
                "marked": self.marked,
                "names": list(self.names),
                "policy": self.policy,
                "run": self.run,
                "versions": [list(pair) for pair in self.versions],
                "write_id": self.write_id,
            }
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope, *, run: str) -> "Boundary":
        """Reads the boundary of this run."""
        fields = _open(envelope, "boundary", run)
        write_id, policy = fields.hex("write_id", WRITE_ID), fields.mapping("policy")
        marked, ranges, names, held = fields.mapping("marked"), fields.array("versions"), fields.array("names"), fields.array("held")
        fields.done()
        good = all(type(since) is int for since in marked.values()) and all(isinstance(name, str) for name in (*names, *held))
        if not good or not all(isinstance(r, list) and len(r) == 2 and all(type(n) is int for n in r) for r in ranges):
            raise Corrupt("the boundary is malformed")
        if not all(1 <= first <= last for first, last in ranges):
            raise Corrupt("the boundary condemns an impossible range of versions")
        return cls(run, write_id, marked, tuple((first, last) for first, last in ranges), tuple(names), policy, tuple(held))


@dataclass(frozen=True)
class Pin:
    """An operator keeps `version` from being collected."""

    run: str
    version: int
    who: str
    why: str
    created_ms: int

    def to_body(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "created_ms": self.created_ms,
                "format": FORMAT_VERSION,
                "kind": "pin",
                "run": self.run,
                "version": self.version,
                "who": self.who,
                "why": self.why,
            }
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope, *, run: str) -> "Pin":
        """Reads a pin of this run."""
        fields = _open(envelope, "pin", run)
        pin = cls(run, fields.integer("version", least=1), fields.text("who"), fields.text("why"), fields.integer("created_ms"))
        fields.done()
        return pin


@dataclass(frozen=True)
class Lease:
    """`holder` needs `version` until `expires_ms`."""

    run: str
    holder: str
    version: int
    expires_ms: int

    def to_body(self) -> bytes:
        """Canonical bytes."""
        return canonical.to_bytes(
            {
                "expires_ms": self.expires_ms,
                "format": FORMAT_VERSION,
                "holder": self.holder,
                "kind": "lease",
                "run": self.run,
                "version": self.version,
            }
        )

    @classmethod
    def from_envelope(cls, envelope: Envelope, *, run: str) -> "Lease":
        """Reads a lease of this run."""
        fields = _open(envelope, "lease", run)
        lease = cls(run, fields.text("holder"), fields.integer("version", least=1), fields.integer("expires_ms"))
        fields.done()
        return lease
