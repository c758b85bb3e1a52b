"""The weight transfer engine that vLLM runs in each worker: changes are staged beside the live parameters, then written into them.

It opens the change by its path, on the same host. What packs or computes cannot be written to: such layers, alone, go through vLLM's own
layerwise reload, fed from the image in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from weightsync.engine.api import Change
from weightsync.engine.change import OpenChange, open_change, tensor_bits
from weightsync.engine.inplace import LiveWeights, Plan
from weightsync.engine.vllm.loader import map_of
from weightsync.errors import Dirty, Invalid, Unsupported
from weightsync.format.layout import Layout
from weightsync.replica.readers import open_image_readonly

_TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing is to be agreed on."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """A change file of this host, and which one it must be."""

    file: str
    digest: str


@dataclass
class _Staged:
    opened: OpenChange
    change: Change
    plan: Plan


class WeightsyncTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Backend `weightsync`."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        layout_map, self._spoilt = map_of(model)
        self.live = LiveWeights(dict(model.named_parameters(remove_duplicate=False)), layout_map)
        self._staged: _Staged | None = None
        self._written: _Staged | None = None
        self.layout: Layout | None = None
        self.done: dict[str, Any] = {}

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Nothing to do: layers that must be reloaded are prepared one by one."""

    def finish_weight_update(self) -> None:
        """The old bits are no longer needed."""
        if self._written is not None:
            self._written.opened.close()
            self._written = None

    def stage(self, file: str, digest: str) -> dict[str, Any]:
        """Works everything out beside the live parameters. Raises what `LiveWeights.stage` does."""
        self.discard()
        opened = open_change(Path(file), digest)
        try:
            with_change = opened.change
            plan = self.live.stage(with_change)
            self._check_reloadable(with_change, plan)
        except BaseException:
            opened.close()
            raise
        self._staged = _Staged(opened, with_change, plan)
        return {"lanes": plan.lanes, "opaque": list(plan.opaque)}

    def discard(self) -> None:
        """Gives up what is staged."""
        if self._staged is not None:
            self._staged.opened.close()
            self._staged = None

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """In the pause. After an error the old weights are whole, or it is `Dirty`."""
        if self._staged is None or self._staged.change.digest != update_info.digest:
            self.stage(update_info.file, update_info.digest)
        staged, self._staged = self._staged, None
        if staged is None:
            raise Invalid("nothing is staged", remedy="stage the change again")
        self._written = staged
        try:
            written, read_back = staged.plan.write(), staged.plan.read_back()
            reloaded = self._reload_opaque(staged)
        except BaseException:
            self.undo()
            raise
        self.layout = staged.change.layout
        self.done = {"written": written + reloaded, "read_back": read_back + reloaded, "opaque": list(staged.plan.opaque)}

    def undo(self) -> None:
        """Back to what was there before the last write, as far as it was in place. Raises `Dirty`."""
        written, self._written = self._written, None
        if written is None:
            return
        try:
            written.plan.undo()
            if written.plan.opaque:
                raise Dirty(f"{len(written.plan.opaque)} tensors were given to vLLM's own loader", remedy="reload the engine")
        finally:
            written.opened.close()

    def sums(self) -> dict[str, Any]:
        """The regions that this worker holds, and the tensors that they are of."""
        return {
            "regions": [
                [one.tensor, one.first, [list(axis) for axis in one.axes], one.lanes, str(one.total)]
                for one in self.live.regions(self.layout)
            ],
            "tensors": {name: [one.dtype, list(one.shape)] for name, one in self.live.map.tensors.items() if name not in self.live.opaque},
        }

    def trainer_send_weights(self, *args: Any, **kwargs: Any) -> None:
        """Older releases ask for it; nothing is sent by this backend."""
        raise NotImplementedError("weightsync publishes to a store")

    def shutdown(self) -> None:
        """Gives up what is staged."""
        self.discard()
        self.finish_weight_update()

    def _reload_opaque(self, staged: _Staged) -> int:
        if not staged.plan.opaque:
            return 0
        layout, live = staged.change.layout, self.live
        wanted = {layout.index[name] for name in staged.plan.opaque}
        holders = self._holders(staged.change, staged.plan)
        modules = sorted({home.rpartition(".")[0] for home in holders})
        needed = sorted({name for home in live.map.homes if home.rpartition(".")[0] in modules for name in self._tensors(home)})
        with torch.no_grad():
            for module in modules:
                initialize_layerwise_reload(self.model.get_submodule(module))
            self.model.load_weights(_whole(staged.change, needed))
            for module in modules:
                finalize_layerwise_reload(self.model.get_submodule(module), self.model_config)
            for module in self._tied_to(modules):  # the loader fills only one of them
                layer = self.model.get_submodule(module)
                layer.quant_method.process_weights_after_loading(layer)
        return sum(one.lanes for one in staged.change.tensors if one.tensor in wanted)

    def _holders(self, change: Change, plan: Plan) -> set[str]:
        wanted = {change.layout.index[name] for name in plan.opaque}
        return {home for home in self.live.map.opaque for name in self._tensors(home) if change.layout.index[name] in wanted}

    def _check_reloadable(self, change: Change, plan: Plan) -> None:
        spoilt = sorted(self._holders(change, plan) & {self.live.map.home_of(name) for name in self._spoilt})
        if spoilt:
            raise Unsupported(
                f"vLLM's own reload leaves {spoilt[0]!r} in another form than its start does", remedy="start vLLM with the new version"
            )

    def _tied_to(self, modules: list[str]) -> list[str]:
        """The layers that share a storage with one of `modules`, and may keep a packed form of it."""
        homes = [home.names for home in self.live.map.homes.values() if {name.rpartition(".")[0] for name in home.names} & set(modules)]
        return sorted({name.rpartition(".")[0] for names in homes for name in names} - set(modules))

    def _tensors(self, home: str) -> set[str]:
        found = {part.tensor for part in self.live.map.parts if part.parameter == home}
        return found | set(self.live.map.computed.get(home, ()))


def _whole(change: Change, names: list[str]) -> Iterator[tuple[str, Any]]:
    with open_image_readonly(change.image) as reader:
        for name in names:
            number = change.layout.index[name]
            tensor = change.layout.tensors[number]
            bits = np.array(tensor_bits(change, reader.image, number))
            yield name, torch.from_numpy(bits.view(np.uint8)).view(_TORCH[tensor.dtype.name]).reshape(tensor.shape)
