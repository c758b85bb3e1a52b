"""A `vllm serve` on this host, driven over its HTTP interface for weight transfer.

    VLLM_SERVER_DEV_MODE=1 vllm serve MODEL ...          # with the flags that `weightsync.engine.vllm.plugin` names
    engine = VllmHttpEngine("http://127.0.0.1:8000")

Workers open the change by its path. All ranks stage, then all write in one pause, or all go back. The server is told the version, which it
puts into what it answers; prefix and encoder caches are emptied in the pause. While it is withdrawn the server is paused: requests wait
there, they are not refused.
"""

import json
import logging
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from weightsync.clock import SYSTEM, Clock
from weightsync.engine.api import Applied, Change, Mode
from weightsync.engine.proof import check_sums
from weightsync.engine.vllm.versions import check_version
from weightsync.errors import Conflict, Corrupt, Denied, Dirty, Invalid, NotFound, Unavailable, Unsupported, WeightsyncError
from weightsync.format.refs import VersionRef

_log = logging.getLogger(__name__)
MAX_ANSWER_BYTES = 1 << 28
_NAME = re.compile(r"([0-9]{1,15})-([0-9a-f]{64})")
_KINDS: Mapping[str, type[WeightsyncError]] = {
    kind.kind: kind for kind in (Conflict, Corrupt, Denied, Dirty, Invalid, NotFound, Unavailable, Unsupported)
}


class VllmHttpEngine:
    """The server at `url`; `timeout_s` is that of a request outside of pauses, `token` its API key. For one thread."""

    def __init__(self, url: str, *, timeout_s: float = 30.0, token: str | None = None, clock: Clock = SYSTEM) -> None:
        self._url, self._timeout_s, self._token, self._clock = url.rstrip("/"), timeout_s, token, clock
        self._checked = False
        self._dirty = ""
        self._withdrawn = False

    @property
    def version(self) -> VersionRef | None:
        """What the server says that it serves; None where it is in doubt, or was started with weights that nobody named."""
        if self._dirty:
            return None
        found = _NAME.fullmatch(str(self._call("GET", "/weight_info").get("weight_version")))
        return VersionRef(int(found[1]), found[2]) if found else None

    def stage(self, change: Change) -> "StagedInVllm":
        """All ranks work it out beside their live weights."""
        self.check_base(change)
        arguments = _file(change)
        try:
            self.rpc("weightsync_stage", *arguments)
        except WeightsyncError:
            self.rpc("weightsync_discard")
            raise
        return StagedInVllm(self, change)

    def reload(self, change: Change, *, limit_s: float = 30.0) -> Applied:
        """Everything from the image, whatever was there. Raises `Dirty` where that fails too."""
        if change.base is not None:
            raise Invalid("only a whole change can be reloaded", remedy="make it without a base")
        self.rpc("weightsync_stage", *_file(change))
        try:
            return self.swap(change, Mode.ABORT, limit_s, prove=True)
        except WeightsyncError as error:
            self._dirty = self._dirty or error.message
            raise Dirty(f"reloading failed: {error.message}", remedy="restart the engine") from error

    def sums(self) -> dict[str, int]:
        """The sums of the live parameters, added over ranks; what vLLM packs is not seen."""
        from weightsync.engine.inplace.layout_map import Described  # noqa: PLC0415 - these import torch
        from weightsync.engine.inplace.region import Region, add_up  # noqa: PLC0415

        regions: list[Region] = []
        tensors: dict[str, Described] = {}
        for rank in self.rpc("weightsync_sums"):
            regions += [
                Region(name, first, tuple((a, b) for a, b in axes), n, int(total)) for name, first, axes, n, total in rank["regions"]
            ]
            tensors |= {name: Described(dtype, tuple(shape)) for name, (dtype, shape) in rank["tensors"].items()}
        return add_up(regions, tensors)

    def withdraw(self, reason: str) -> None:
        """Pauses the server until `admit`; requests in flight are aborted."""
        self._withdrawn = True
        _log.warning("vLLM at %s is paused: %s", self._url, reason)
        self._call("POST", "/pause", {"mode": "abort"})

    def admit(self) -> None:
        """Resumes. Raises `Dirty` where it must not."""
        if self._dirty:
            raise Dirty(f"the weights are in doubt: {self._dirty}", remedy="reload them")
        self._withdrawn = False
        self._call("POST", "/resume")

    def close(self) -> None:
        """Nothing to let go of."""

    def check_base(self, change: Change) -> None:
        """Raises `Conflict` unless the change starts from what is served."""
        if change.base is not None and change.base != self.version:
            raise Conflict(f"the change starts from version {change.base.version}, which is not served", remedy="make it from what is")

    def discard(self) -> None:
        """Gives up what is staged."""
        self.rpc("weightsync_discard")

    def swap(self, change: Change, mode: Mode, limit_s: float, *, prove: bool) -> Applied:
        """Pause, write, read back, empty caches, name the version, resume. Stays paused only where it is dirty, or withdrawn."""
        started = self._clock.monotonic_s()

        def left_s() -> float:
            left = limit_s - (self._clock.monotonic_s() - started)
            if left <= 0:
                raise Unavailable("the pause's limit is over", remedy="try again")
            return left

        try:
            self._call("POST", "/pause", {"mode": mode.value}, timeout_s=left_s())
            ranks = self._write(change, left_s, prove=prove)
        finally:
            if not (self._dirty or self._withdrawn):
                self._call("POST", "/resume")
        pause_s = self._clock.monotonic_s() - started
        opaque = sorted({name for rank in ranks for name in rank["opaque"]})
        written, read_back = (sum(rank[key] for rank in ranks) for key in ("written", "read_back"))
        return Applied(change.version, written, read_back, pause_s, tuple(opaque))

    def rpc(self, method: str, *arguments: str, timeout_s: float | None = None) -> list[Any]:
        """What each rank's worker answers. Raises the first error of one, the gravest first."""
        found = self._call("POST", "/collective_rpc", body={"method": method, "args": list(arguments)}, timeout_s=timeout_s)
        answers = found.get("results")
        if not isinstance(answers, list) or not answers or not all(isinstance(one, dict) for one in answers):
            raise Unsupported("the server's workers do not answer", remedy="start vLLM with --worker-extension-cls, as documented")
        errors = sorted((one for one in answers if "error" in one), key=lambda one: one["error"] != Dirty.kind)
        if errors:
            raise _KINDS.get(errors[0]["error"], Unavailable)(str(errors[0].get("message")), remedy=str(errors[0].get("remedy", "")))
        return [one["ok"] for one in answers]

    def _write(self, change: Change, left_s: Any, *, prove: bool) -> list[Any]:
        try:
            ranks = self.rpc("weightsync_write", *_file(change), timeout_s=left_s())
            if prove:
                check_sums(change.layout, change.sums, self.sums(), change.version)
            self._empty_caches()
            self._call("POST", "/update_weight_version", body={"new_version": f"{change.version.version}-{change.version.manifest}"})
        except WeightsyncError as error:
            self._go_back(error)
            raise
        self._dirty = ""
        try:
            self.rpc("weightsync_keep")
        except WeightsyncError as error:  # the old bits lie about until the next change
            _log.warning("vLLM was not told to forget the old weights: %s", error)
        return ranks

    def _go_back(self, error: WeightsyncError) -> None:
        try:
            self.rpc("weightsync_undo")
        except WeightsyncError as worse:
            self._dirty = worse.message
            raise Dirty(f"going back failed after: {error.message}", remedy="reload the engine") from worse

    def _empty_caches(self) -> None:
        if self._call("POST", "/reset_prefix_cache", {"reset_running_requests": "true"}).get("success") is not True:
            raise Unavailable("the prefix cache could not be emptied", remedy="try again")
        self._call("POST", "/reset_mm_cache")
        self._call("POST", "/reset_encoder_cache")

    def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, *, body: Any = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        if not self._checked:
            self._checked = True
            try:
                check_version(str(self._call("GET", "/version").get("version")))
            except BaseException:
                self._checked = False
                raise
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._token}"} if self._token else {})
        data = json.dumps(body).encode() if body is not None else (b"" if method == "POST" else None)
        url = f"{self._url}{path}" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - open_engine lets http and https through
        try:
            with urllib.request.urlopen(request, timeout=timeout_s or self._timeout_s) as answer:  # noqa: S310
                text = answer.read(MAX_ANSWER_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise _refused(error.code, path, error.read(2000).decode(errors="replace")) from None
        except OSError as error:
            raise Unavailable(f"{self._url} does not answer {path}: {error}", remedy="see whether vLLM runs there") from None
        return _parsed(text, path)


class StagedInVllm:
    """A change that fits."""

    def __init__(self, engine: VllmHttpEngine, change: Change) -> None:
        self._engine, self._change, self._used = engine, change, False

    def apply(self, mode: Mode = Mode.KEEP, *, limit_s: float = 30.0, prove: bool = False) -> Applied:
        """Writes it on all ranks, or on none."""
        self._use()
        self._engine.check_base(self._change)
        return self._engine.swap(self._change, mode, limit_s, prove=prove)

    def discard(self) -> None:
        """Gives it up."""
        self._use()
        self._engine.discard()

    def _use(self) -> None:
        if self._used:
            raise Invalid("this change was applied or discarded already", remedy="stage it again")
        self._used = True


def _file(change: Change) -> tuple[str, str]:
    if change.file is None or change.digest is None:
        raise Invalid("this change has no file for the workers to open", remedy="make it with make_change")
    return str(change.file), change.digest


def _refused(code: int, path: str, text: str) -> WeightsyncError:
    if code in (401, 403):
        return Denied(f"vLLM refuses {path}", remedy="give its API key as the engine's token")
    if code == 404:
        return Unsupported(f"vLLM has no {path}", remedy="start it with VLLM_SERVER_DEV_MODE=1")
    return Unavailable(f"vLLM answers {path} with {code}: {text[:300]}", remedy="see its log")


def _parsed(text: bytes, path: str) -> dict[str, Any]:
    if len(text) > MAX_ANSWER_BYTES:
        raise Unavailable(f"vLLM's answer to {path} is too long")
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unavailable(f"vLLM's answer to {path} is no JSON object")
    return found
