"""What vLLM loads in each of its processes (entry point group `vllm.general_plugins`).

    vllm serve MODEL --load-format weightsync --weight-transfer-config '{"backend": "weightsync"}' \
        --worker-extension-cls weightsync.engine.vllm.worker.WeightsyncWorker

The loader is vLLM's own, watched. `--model-loader-extra-config '{"unpacked": true}'` leaves the linears of the CPU build as on GPUs,
so that changes can be written in place.
"""

import logging

from weightsync.engine.vllm.versions import check_version, installed
from weightsync.errors import Unsupported

NAME = "weightsync"
_log = logging.getLogger(__name__)


def register() -> None:
    """Makes backend and load format known; may be called again. On a release that is not supported it says so, and vLLM starts without."""
    try:
        check_version(installed())
    except Unsupported as error:
        _log.error("weightsync is left out: %s", error)
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory  # noqa: PLC0415 - vLLM is there only in its processes
    from vllm.model_executor.model_loader import register_model_loader  # noqa: PLC0415

    from weightsync.engine.vllm.loader import RecordingLoader  # noqa: PLC0415

    if NAME not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(NAME, "weightsync.engine.vllm.transfer", "WeightsyncTransferEngine")
        register_model_loader(NAME)(RecordingLoader)
