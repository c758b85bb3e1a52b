"""From a URL to the adapter of an engine.

    dir:///srv/weights  dir://weights      a directory per version, `current` names the one to load
    vllm+http://host:8000                  a `vllm serve` on this host (Unix user and file system are shared with it)
    sglang+http://host:30000               an SGLang server, likewise
    memory://name                          an engine in this process, which was `share`d under that name

Adapters are imported when they are asked for, so that none of their packages is needed otherwise.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from weightsync.engine.api import Engine
from weightsync.engine.directory import DirectoryEngine, Write
from weightsync.errors import Invalid, NotFound, Unsupported


class _Remote(NamedTuple):
    module: str
    name: str
    extra: str


_REMOTE = {
    "vllm": _Remote("weightsync.engine.vllm.http", "VllmHttpEngine", "vllm"),
    "sglang": _Remote("weightsync.engine.sglang.http", "SglangHttpEngine", "torch"),
}
_PLAIN = ("http", "https")
_KNOWN = "dir://PATH, vllm+http://HOST:PORT, sglang+http://HOST:PORT"
_shared: dict[str, Engine] = {}


def share(name: str, engine: Engine) -> Callable[[], None]:
    """Lets `memory://name` mean `engine` in this process, until what is returned is called."""
    _shared[name] = engine

    def end() -> None:
        _shared.pop(name, None)

    return end


def kind_of(url: str) -> str:
    """`directory`, `vllm`, `sglang` or `memory`. Raises `Invalid` for what is no URL of an engine."""
    scheme, separator, rest = url.partition("://")
    engine, plus, transport = scheme.partition("+")
    if separator and rest:
        if scheme == "dir":
            return "directory"
        if scheme == "memory":
            return "memory"
        if plus and engine in _REMOTE and transport in _PLAIN:
            return engine
    raise Invalid(f"{url!r} is no URL of an engine", remedy=f"give {_KNOWN}")


def open_engine(
    url: str, *, timeout_s: float = 30.0, token: str | None = None, keep: int = 2, write: Write | None = None, look_only: bool = False
) -> Engine:
    """The adapter for `url`, which may not have reached its engine yet.

    `timeout_s`: of one request, `token`: a bearer token, for engines over HTTP. `keep`, `write`: for directories.
    `look_only`: nothing will be changed, so that a directory that is being written to can be looked at.
    Raises `Invalid`, `NotFound`, `Unsupported` (a package is missing), `Conflict` (a directory in use), `Unavailable`.
    """
    kind, rest = kind_of(url), url.partition("://")[2]
    if kind == "directory":
        return DirectoryEngine(Path(rest), keep=keep, write=write, look_only=look_only)
    if kind == "memory":
        if rest not in _shared:
            raise NotFound(f"no engine is called {rest!r} in this process", remedy="share it first")
        return _shared[rest]
    remote = _REMOTE[kind]
    try:
        adapter = getattr(importlib.import_module(remote.module), remote.name)
    except ModuleNotFoundError as error:
        if remote.module.startswith(error.name or "-"):
            raise Unsupported(
                f"this release has no adapter for {kind}", remedy="upgrade weightsync, or feed a directory: dir://PATH"
            ) from None
        raise Unsupported(f"{error.name} is missing", remedy=f"pip install 'weightsync[{remote.extra}]'") from None
    engine: Engine = adapter(url.removeprefix(f"{kind}+"), timeout_s=timeout_s, token=token)
    return engine
