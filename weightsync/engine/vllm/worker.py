"""Methods that vLLM's workers gain (`--worker-extension-cls`), for `collective_rpc`; errors come back as values, with their kind."""

from collections.abc import Callable
from typing import Any

from weightsync.errors import WeightsyncError


class WeightsyncWorker:
    """Mixed into vLLM's worker class, whose attributes it uses."""

    weight_transfer_engine: Any

    def weightsync_stage(self, file: str, digest: str) -> dict[str, Any]:
        """Before the pause."""
        return _answer(lambda: self.weight_transfer_engine.stage(file, digest))

    def weightsync_discard(self) -> dict[str, Any]:
        """Gives up what is staged."""
        return _answer(self.weight_transfer_engine.discard)

    def weightsync_write(self, file: str, digest: str) -> dict[str, Any]:
        """In the pause: `update_weights`, with an answer."""
        engine = self.weight_transfer_engine

        def write() -> dict[str, Any]:
            engine.receive_weights(engine.parse_update_info({"file": file, "digest": digest}))
            return dict(engine.done)

        return _answer(write)

    def weightsync_undo(self) -> dict[str, Any]:
        """Where another rank failed."""
        return _answer(self.weight_transfer_engine.undo)

    def weightsync_keep(self) -> dict[str, Any]:
        """The change stays."""
        return _answer(self.weight_transfer_engine.finish_weight_update)

    def weightsync_sums(self) -> dict[str, Any]:
        """Of what this rank holds."""
        return _answer(self.weight_transfer_engine.sums)

    def weightsync_report(self) -> dict[str, Any]:
        """What the layout map covers."""
        return _answer(self.weight_transfer_engine.live.map.report)


def _answer(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"ok": call() or {}}
    except WeightsyncError as error:
        return {"error": error.kind, "message": error.message, "remedy": error.remedy}
