"""A torch module of this process as an engine: its state dict's own tensors are changed in place, on whatever device they are.

    gate = Gate()
    engine = TorchModuleEngine(module, gate, VersionRef(1, digest))
    engine.stage(change).apply(Mode.KEEP, limit_s=1.0)

Whoever generates with the module does so in steps of the `gate`. The module's parameters must stay where they are: a module that is
moved, or given other tensors, needs another engine.
"""

from collections.abc import Mapping
from typing import Any

from weightsync.clock import SYSTEM, Clock
from weightsync.engine.api import Applied, Change, Mode
from weightsync.engine.gate import Gate
from weightsync.engine.inplace.layout_map import LayoutMap
from weightsync.engine.inplace.live import LiveWeights
from weightsync.engine.inplace.plan import Plan
from weightsync.engine.inplace.state_map import state_map
from weightsync.engine.proof import check_sums
from weightsync.errors import Conflict, Dirty, Invalid, WeightsyncError
from weightsync.format.layout import Layout
from weightsync.format.refs import VersionRef


class TorchModuleEngine:
    """`module` holds `version` (None: nothing of use yet). For one thread, beside those that generate."""

    def __init__(
        self, module: Any, gate: Gate, version: VersionRef | None = None, *, layout: Layout | None = None, clock: Clock = SYSTEM
    ) -> None:
        """`layout`: that of the checkpoints to come, whose types may be narrower (bf16 in fp32 parameters).

        None: learned from the first one staged; until then tied tensors go by the first of their names.
        """
        self._state: Mapping[str, Any] = module.state_dict(keep_vars=True)
        self._gate, self._clock = gate, clock
        self._version, self._dirty = version, ""
        self._layout = layout
        self._live = self._through(layout)
        gate.serve(version.version if version else None, "nothing was loaded yet")

    @property
    def version(self) -> VersionRef | None:
        """What it serves; None: nothing, or what is in doubt."""
        return None if self._dirty else self._version

    @property
    def layout_map(self) -> LayoutMap:
        """Where the checkpoint's tensors lie."""
        return self._live.map

    def stage(self, change: Change) -> "StagedInModule":
        """Works out the writes beside the module. Raises `Invalid`, `Conflict` (another base), `Corrupt` (it is not what it should be)."""
        self.check_base(change)
        return StagedInModule(self, self._gate, change, self._plan(change))

    def reload(self, change: Change, *, limit_s: float = 30.0) -> Applied:
        """Writes everything, whatever was there. Raises `Dirty` where that fails too."""
        if change.base is not None:
            raise Invalid("only a whole change can be reloaded", remedy="make it without a base")
        plan = self._plan(change)
        try:
            with self._gate.pause(Mode.ABORT, limit_s) as pause:
                try:
                    written = plan.put(pause.check)
                    self.prove(change)
                except BaseException as error:
                    self.be_dirty(error)
                    raise
                self._dirty = ""
                self.now_serves(change.version)
        except WeightsyncError as error:
            if self._dirty:
                raise Dirty(f"reloading failed: {error}", remedy="start the engine anew") from error
            raise
        return Applied(change.version, written, written, pause.seconds)

    def sums(self) -> Mapping[str, int]:
        """The sums of all live tensors, by name of the layout."""
        return self._live.sums(self._layout)

    def withdraw(self, reason: str) -> None:
        """Serves nothing from now on."""
        self._gate.withdraw(reason)

    def admit(self) -> None:
        """Serves again. Raises `Dirty` where it must not."""
        if self._dirty or self._version is None:
            raise Dirty(f"the weights are in doubt: {self._dirty or 'nothing was loaded yet'}", remedy="reload them")
        self._gate.admit()

    def close(self) -> None:
        """Nothing is to be let go; the module and its gate stay as they are."""

    def check_base(self, change: Change) -> None:
        """Raises `Conflict` unless the change starts from what is served."""
        if change.base is not None and change.base != self.version:
            raise Conflict(f"the change starts from version {change.base.version}, which is not served", remedy="make it from what is")

    def prove(self, change: Change) -> None:
        """Raises `Corrupt` unless the sums of all live tensors are those of the change's version."""
        check_sums(change.layout, change.sums, self._live.sums(change.layout), change.version)

    def now_serves(self, version: VersionRef) -> None:
        """After a write that was read back, in the pause."""
        self._version = version
        self._gate.serve(version.version)

    def be_dirty(self, why: BaseException) -> None:
        """Serves nothing until it is reloaded."""
        self._dirty = str(why) or type(why).__name__
        self._gate.serve(None, f"the weights are in doubt: {self._dirty}")

    def _plan(self, change: Change) -> Plan:
        # Once learned, the types of the checkpoint stay: another model is refused.
        live = self._through(change.layout) if self._layout is None else self._live
        plan = live.stage(change)
        self._live, self._layout = live, change.layout
        return plan

    def _through(self, layout: Layout | None) -> LiveWeights:
        return LiveWeights(self._state, state_map(self._state, layout))


class StagedInModule:
    """A change that fits."""

    def __init__(self, engine: TorchModuleEngine, gate: Gate, change: Change, plan: Plan) -> None:
        self._engine, self._gate, self._change = engine, gate, change
        self._plan: Plan | None = plan

    def apply(self, mode: Mode = Mode.KEEP, *, limit_s: float = 30.0, prove: bool = False) -> Applied:
        """Writes it, or nothing of it. `Unavailable`: the pause could not be had, or is over before all is written."""
        plan, engine, change = self._take(), self._engine, self._change
        engine.check_base(change)
        with self._gate.pause(mode, limit_s) as pause:
            try:
                written = plan.put(pause.check)
                if prove:
                    engine.prove(change)
            except BaseException as error:
                _go_back(plan, engine, error)
                raise
            engine.now_serves(change.version)
        return Applied(change.version, written, written, pause.seconds)

    def discard(self) -> None:
        """Gives it up."""
        self._take()

    def _take(self) -> Plan:
        plan, self._plan = self._plan, None
        if plan is None:
            raise Invalid("this change was applied or discarded already", remedy="stage it again")
        return plan


def _go_back(plan: Plan, engine: TorchModuleEngine, error: BaseException) -> None:
    try:
        plan.undo()
    except BaseException as worse:
        engine.be_dirty(worse)
        raise Dirty(f"going back failed after: {error}", remedy="reload the engine") from worse
