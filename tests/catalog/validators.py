"""What must hold when the dust has settled. They read the store by themselves, without the catalog."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from tests.catalog.actors import Witness

Body = dict[str, Any]
Get = Callable[[str], bytes | None]


@dataclass(frozen=True)
class State:
    """The final store: how to read it, and the run's prefix."""

    get: Get
    prefix: str

    def record(self, key: str) -> Body | None:
        data = self.get(self.prefix + key)
        return None if data is None else json.loads(data.partition(b"\n")[0])

    def head(self, channel: str) -> Body | None:
        return self.record(f"channels/{channel}/head")

    def history(self, channel: str) -> list[Body]:
        """Envelopes, newest first."""
        found, envelope = [], self.head(channel)
        while envelope is not None:
            found.append(envelope)
            previous = envelope["body"]["previous"]
            if previous is None:
                return found
            envelope = self.record(f"channels/{channel}/log/{previous['sequence']}-{previous['write_id']}")
            if envelope is None or envelope["digest"] != previous["digest"]:
                raise AssertionError(f"the history of {channel} breaks at {previous['sequence']}")
        return found

    def condemned(self, version: int) -> bool:
        boundary = self.record("gc/boundary")
        return boundary is not None and any(first <= version <= last for first, last in boundary["body"]["versions"])


def check_history(moves: list[Body], channel: str) -> None:
    """One chain: sequences without gaps, epochs and the highest version never go back."""
    assert [m["sequence"] for m in moves] == list(range(len(moves), 0, -1)), f"sequences of {channel} have gaps"
    for newer, older in itertools.pairwise(moves):
        assert newer["epoch"] >= older["epoch"], "an epoch went back"
        assert newer["highest"] >= older["highest"], "the highest version went back"
        assert newer["write_id"] != older["write_id"]


def check_epochs(moves: list[Body], seen: Witness) -> None:
    """Within an epoch one publisher moves `latest`: every claim and rollback opens its own, and nobody is told of one twice."""
    assert len(set(seen.claims)) == len(seen.claims), "two publishers hold one epoch"
    opened = [m["epoch"] for m in reversed(moves) if m["version"] <= _before(moves, m)]
    assert len(set(opened)) == len(opened), "an epoch was opened twice"
    for move in moves:
        if move["version"] > _before(moves, move):
            older = next(m for m in moves if m["sequence"] == move["sequence"] - 1)
            assert older["epoch"] == move["epoch"], "a fenced publisher has committed"
            assert older["who"] == move["who"], "somebody commits under another's claim"


def _before(moves: list[Body], move: Body) -> int:
    """The highest version before `move`."""
    return next((m["highest"] for m in moves if m["sequence"] == move["sequence"] - 1), 0)


def check_outcomes(written: set[str], seen: Witness) -> None:
    assert not written & seen.lost, "a winner believes that it lost"
    assert seen.won <= written, "a loser believes that it won"


def check_versions(state: State, moves: list[Body], seen: Witness) -> dict[int, str]:
    """Committed versions are whole, never two contents under one number, and none that was acknowledged is lost."""
    committed: dict[int, str] = {}
    for move in moves:
        if move["version"]:
            digest = move["manifest"]["digest"]
            assert committed.setdefault(move["version"], digest) == digest, f"version {move['version']} has two contents"
    for version, digest in seen.acknowledged:
        assert committed.get(version) == digest, f"acknowledged version {version} is lost or another's"
    for version, digest in committed.items():
        manifest = state.record(f"versions/{version}/manifest")
        assert manifest is not None, f"version {version} has no manifest"
        assert manifest["digest"] == digest, f"the manifest of version {version} is another's"
        _check_chain(manifest["body"], committed)
        if not state.condemned(version):
            _check_whole(state, manifest["body"], seen.contents[digest])
    return committed


def _check_chain(manifest: Body, committed: dict[int, str]) -> None:
    parent = manifest["parent"]
    if parent is not None:
        assert parent["version"] < manifest["version"], "a version grows from a later one"
        assert committed.get(parent["version"]) == parent["manifest"], f"version {manifest['version']} grows from an uncommitted one"


def _check_whole(state: State, manifest: Body, content: bytes) -> None:
    version = manifest["version"]
    payload = state.record(f"versions/{version}/payloads/{manifest['base']}-{manifest['writer']}")
    assert payload is not None, f"version {version} has no payload"
    shard = state.get(f"{state.prefix}shards/{manifest['writer']}-{version}-{manifest['base']}/{blake3(content).hexdigest()}")
    assert shard == content, f"version {version} dangles"


def check_heads(state: State, *, somebody_died: bool) -> bool:
    """No head stays on a condemned version, unless who moved it there died before retracting. True when one does."""
    heads = [state.head(channel) for channel in ("latest", "serving")]
    stuck = any(head is not None and state.condemned(head["body"]["version"]) for head in heads)
    assert not stuck or somebody_died, "a head stays on a condemned version"
    return stuck
