"""The cheapest way to every version, by trying everything: reads the store's records as plain JSON, with no code of the library.

It relies on nothing but what the format says: `versions/<N>/manifest` and `versions/<N>/payloads/<base>-<writer>` are JSON envelopes whose
body names base, target and shards with their bytes.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Edge = tuple[int, int, int, str]  # base (0: nothing), target, bytes, form


def edges(objects: Mapping[str, bytes], run: str) -> list[Edge]:
    """All ways from one version to another; their bytes include the table of leaves of the version reached."""
    bodies = {key.removeprefix(f"{run}/"): _body(data) for key, data in objects.items()}
    leaves = {body["version"]: body["digests"]["bytes"] for key, body in bodies.items() if key.endswith("/manifest")}
    found: list[Edge] = []
    for key, body in bodies.items():
        if "/payloads/" not in key:
            continue
        target, base = body["target"]["version"], (body["base"] or {"version": 0})["version"]
        found.append((base, target, sum(shard["bytes"] for shard in body["shards"]) + leaves[target], body["form"]))
    return found


def cheapest(ways: Iterable[Edge], have: int, want: int, *, keep: Callable[[Edge], bool] = lambda _: True) -> int:
    """Bytes from `have` (0: nothing) to `want`: relaxed until nothing gets better. All ways lead to higher numbers."""
    cost = {0: 0, have: 0}
    for base, target, nbytes, _ in sorted(filter(keep, ways), key=lambda edge: edge[1]):
        if base in cost and target <= want and cost[base] + nbytes < cost.get(target, 1 << 62) and target != have:
            cost[target] = cost[base] + nbytes
    return cost[want]


def _body(data: bytes) -> dict[str, Any]:
    envelope = json.loads(data)
    body = envelope["body"]
    return json.loads(body) if isinstance(body, str) else body
