"""Going back to an older version that is kept beside the image: local, without the network."""

from weightsync.errors import Invalid
from weightsync.format.refs import VersionRef
from weightsync.replica.remember import go_back
from weightsync.replica.replica import Replica


def step_back(replica: Replica, version: VersionRef) -> None:
    """Makes `replica` hold a version from its past; the way forth again is kept.

    Raises `Corrupt` where it is not kept, or damaged, `Conflict`, `NoSpace`; what was held is held then.
    """
    replica.remember()
    held, layout = replica.version, replica.layout
    if held is None or layout is None:
        raise Invalid("the replica holds no version to go back from")
    if held == version:
        return
    pairs = replica.past.way(held, version)
    table = replica.past.table(version, layout)
    with replica.begin(version, layout, table) as transition:
        go_back(transition, pairs, replica.workers)
        transition.finish(remember=False)
