"""One rank of a `RankEngine`: holds a range of every tensor's lanes, and does what it is told over its standard input.

    {"do": "load" | "stage" | "write" | "undo" | "commit" | "sums" | "ask", ...}  ->  {"ok": true, ...} or {"error": kind, "message": ...}

It opens change files and images by path, as the workers of a real engine do; nothing but JSON goes over the pipe.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from weightsync.codec import chunk_sum
from weightsync.engine.change import OpenChange, open_change, tensor_bits
from weightsync.engine.changed_lanes import image_bits
from weightsync.errors import Corrupt, Invalid, WeightsyncError
from weightsync.format.layout import Layout
from weightsync.replica.readers import open_image_readonly


class Rank:
    """Number `rank` of `ranks`."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks
        self._layout: Layout | None = None
        self._live: list[NDArray[Any]] = []
        self._opened: OpenChange | None = None
        self._undo: list[tuple[int, NDArray[Any] | slice, NDArray[Any]]] = []

    def load(self, image: str, file: str, digest: str) -> dict[str, Any]:
        """Everything from the image, as a whole change says."""
        with open_change(Path(file), digest) as change, open_image_readonly(Path(image)) as reader:
            self._layout = change.layout
            self._live = [self._mine(tensor_bits(change, reader.image, number)).copy() for number in range(len(change.layout.tensors))]
        return {}

    def start(self, image: str) -> dict[str, Any]:
        """What the image holds, whichever version that is."""
        with open_image_readonly(Path(image)) as reader:
            self._layout = reader.layout
            self._live = [self._mine(image_bits(reader.layout, reader.image, n)).copy() for n in range(len(reader.layout.tensors))]
        return {}

    def stage(self, file: str, digest: str) -> dict[str, Any]:
        """Opens a change, checks that it fits."""
        self.discard()
        opened = open_change(Path(file), digest)
        if self._layout is None or opened.change.layout.digest != self._layout.digest:
            opened.close()
            raise Invalid("the change is for another model")
        self._opened = opened
        return {}

    def discard(self) -> dict[str, Any]:
        """Gives up what was staged."""
        if self._opened is not None:
            self._opened.close()
        self._opened = None
        return {}

    def write(self, die_at: int = -1) -> dict[str, Any]:
        """Writes this rank's part, and reads it back; `die_at`: kills itself before that tensor."""
        if self._opened is None:
            raise Invalid("nothing is staged")
        written = 0
        for count, one in enumerate(self._opened.change.tensors):
            if count == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            place, values = self._part(one.tensor, one.positions, one.values)
            live = self._live[one.tensor]
            self._undo.append((one.tensor, place, live[place].copy()))
            live[place] = values
            if not np.array_equal(live[place], values):
                raise Corrupt(f"tensor {one.tensor} did not keep what was written")
            written += len(values)
        return {"written": written}

    def undo(self) -> dict[str, Any]:
        """Goes back to before `write`."""
        for tensor, place, before in reversed(self._undo):
            self._live[tensor][place] = before
        return self.commit()

    def commit(self) -> dict[str, Any]:
        """Forgets the way back."""
        self._undo.clear()
        return self.discard()

    def sums(self) -> dict[str, Any]:
        """This rank's part of the sums, by tensor number."""
        tensors = self._layout.tensors if self._layout else ()
        parts = zip(tensors, self._live, strict=True)
        return {"sums": [chunk_sum(one.dtype, live.data, self._range(one.lanes).start) for one, live in parts]}

    def ask(self) -> dict[str, Any]:
        """A fingerprint of what is live."""
        hasher = xxhash.xxh3_64()
        for live in self._live:
            hasher.update(live.tobytes())
        return {"said": hasher.intdigest()}

    def _range(self, lanes: int) -> slice:
        return slice(lanes * self._rank // self._ranks, lanes * (self._rank + 1) // self._ranks)

    def _mine(self, lanes: NDArray[Any]) -> NDArray[Any]:
        return lanes[self._range(len(lanes))]

    def _part(self, tensor: int, positions: NDArray[Any] | None, values: NDArray[Any]) -> tuple[NDArray[Any] | slice, NDArray[Any]]:
        own = self._range(self._layout.tensors[tensor].lanes if self._layout else 0)
        if positions is None:
            return slice(None), values[own]
        first, last = np.searchsorted(positions, [own.start, own.stop])
        return positions[first:last] - positions.dtype.type(own.start), values[first:last]


def main() -> None:
    """Until the input ends."""
    rank = Rank(int(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = {"ok": True, **getattr(rank, call.pop("do"))(**call)}
        except WeightsyncError as error:
            answer = {"error": error.kind, "message": error.message}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
