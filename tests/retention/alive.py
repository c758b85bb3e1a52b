"""Which versions can be rebuilt from what is in a store: read from the bytes alone, without the code under test."""

import json
from collections.abc import Iterable
from typing import Any, Protocol

Body = dict[str, Any]
RUN = "sim"


class Store(Protocol):
    """How the store is read: everything at one moment."""

    def dump(self) -> dict[str, bytes]: ...


class State:
    """A store at one moment; keys are without the run's prefix."""

    def __init__(self, store: Store, run: str = RUN) -> None:
        self.objects = {key.removeprefix(f"{run}/"): data for key, data in store.dump().items()}
        self.boundary = self._body("gc/boundary")
        self.committed = dict(self._history())

    def _body(self, key: str) -> Body | None:
        data = self.objects.get(key)
        return None if data is None else json.loads(data.partition(b"\n")[0])["body"]

    def _history(self) -> Iterable[tuple[int, str]]:
        move = self._body("channels/latest/head")
        while move is not None:
            if move["version"]:
                yield move["version"], move["manifest"]["digest"]
            before = move["previous"]
            if before is None:
                return
            move = self._body(f"channels/latest/log/{before['sequence']}-{before['write_id']}")
            assert move is not None, "the history breaks"

    def head(self, channel: str) -> int:
        move = self._body(f"channels/{channel}/head")
        return move["version"] if move else 0

    def condemned(self, version: int) -> bool:
        return self.boundary is not None and any(first <= version <= last for first, last in self.boundary["versions"])

    def hit(self, version: int) -> bool:
        return self.condemned(version) or (self.boundary is not None and f"versions/{version}" in self.boundary["marked"])

    def gone(self, key: str) -> bool:
        """Whether the boundary has given up the object under `key`, by the words of FORMAT.md."""
        if self.boundary is None:
            return False
        kind, _, rest = key.partition("/")
        held = set(self.boundary["held"])
        if kind == "versions":
            version, _, what = rest.partition("/")
            name = f"payloads/{version}/{what.removeprefix('payloads/')}" if what.startswith("payloads/") else f"versions/{version}"
        elif kind == "shards":
            writer, version, base = rest.partition("/")[0].split("-")
            name = f"payloads/{version}/{base}-{writer}"
        elif kind == "digests":
            version, name = rest.partition("/")[0].split("-")[1], "digests/" + rest.partition("/")[0]
        elif kind == "pins":
            return self.condemned(int(rest))
        elif kind == "leases":
            return self.condemned(int(rest.rpartition("--")[2]))
        else:
            return False
        if name in self.boundary["names"]:
            return True
        needed = name in held if name.startswith("payloads/") else any(h.split("/")[1] == version for h in held)
        return self.condemned(int(version)) and not needed

    def is_alive(self, version: int, seen: frozenset[int] = frozenset()) -> bool:
        """Whether some chain of payloads whose objects all stand, none of them given up, leads to it from nothing."""
        manifest = self._body(f"versions/{version}/manifest")
        if manifest is None or version in seen or self.gone(f"versions/{version}/manifest"):
            return False
        leaves = f"digests/{manifest['writer']}-{version}/{manifest['digests']['digest']}"
        if leaves not in self.objects or self.gone(leaves):
            return False
        prefix = f"versions/{version}/payloads/"
        return any(self._leads(key, version, seen) for key in self.objects if key.startswith(prefix))

    def _leads(self, key: str, version: int, seen: frozenset[int]) -> bool:
        payload = self._body(key)
        if payload is None or self.gone(key) or payload["target"]["manifest"] != self.committed.get(version):
            return False
        base = payload["base"]
        number = base["version"] if base else 0
        shards = [f"shards/{payload['writer']}-{version}-{number}/{shard['digest']}" for shard in payload["shards"]]
        if not all(shard in self.objects and not self.gone(shard) for shard in shards):
            return False
        return base is None or (self.committed.get(number) == base["manifest"] and self.is_alive(number, seen | {version}))

    def check(self) -> None:
        """Everything that nobody has given up can be rebuilt."""
        for version in self.committed:
            assert self.hit(version) or self.is_alive(version), f"version {version} dangles"
            assert self.condemned(version) or self.is_alive(version), f"version {version}, only marked, dangles"
