"""What a whole publish costs: file to committed version in a `file://` store, digests, upload and read-back check included."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.measure import cpu_s
from benchmarks.pairs import Pair, write_tensors
from weightsync.catalog import Catalog
from weightsync.publisher.publisher import Publisher
from weightsync.replica.fetch import ShardSource
from weightsync.replica.replica import Replica
from weightsync.store.file import FileStore


def delta_of_full(pair: Pair, rounds: int = 3) -> float:
    """CPU time of publishing one state of `pair` as a delta on the other, over that of publishing it as a snapshot; medians."""
    with TemporaryDirectory() as name:
        home = Path(name)
        states = [home / "old.safetensors", home / "new.safetensors"]
        write_tensors(states[0], {tensor.name: (tensor.dtype, tensor.shape, tensor.old) for tensor in pair.tensors})
        write_tensors(states[1], {tensor.name: (tensor.dtype, tensor.shape, tensor.new) for tensor in pair.tensors})
        catalog = Catalog(FileStore(home / "store"), "bench")
        with Publisher(catalog, Replica(home / "base"), ShardSource(catalog), who="benchmark") as publisher:
            publisher.start()
            publisher.publish_checkpoint(states[0])
            deltas, fulls = [], []
            for number in range(1, rounds + 1):
                state = states[number % 2]
                deltas.append(cpu_s(lambda state=state: publisher.publish_checkpoint(state)))
                fulls.append(cpu_s(lambda state=state: publisher.publish_checkpoint(state, snapshot=True)))
    return median(deltas) / median(fulls)
