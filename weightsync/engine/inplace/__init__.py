"""Changes written into the parameters of a running engine, through a map that was learned from its own loader.

layout_map = record(parameters, load, tensors)          # once, at start: where each element of the checkpoint lands
check(layout_map, parameters, load, tensors)            # before it is trusted
live = LiveWeights(parameters, layout_map)
plan = live.stage(change)                               # beside the serving engine
plan.write(); plan.read_back()                          # in the pause; `plan.undo()` where that fails
live.sums() == expected                                 # while it serves
"""

from weightsync.engine.inplace.check import check
from weightsync.engine.inplace.layout_map import LayoutMap, Part
from weightsync.engine.inplace.live import LiveWeights
from weightsync.engine.inplace.permutation import Permutation, learn_permutation
from weightsync.engine.inplace.plan import Plan
from weightsync.engine.inplace.recorder import Recorder, record
from weightsync.engine.inplace.region import Region, add_up

__all__ = [
    "LayoutMap",
    "LiveWeights",
    "Part",
    "Permutation",
    "Plan",
    "Recorder",
    "Region",
    "add_up",
    "check",
    "learn_permutation",
    "record",
]
