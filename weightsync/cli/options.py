"""Flags that many verbs share, and the context that they make.

A verb is a function whose first parameter is a `Context`; `@verb(STORE, RUN)` adds the shared flags to those in its signature.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from weightsync.cli.context import Context

Verb = Callable[..., int | None]


@dataclass(frozen=True)
class Shared:
    """A flag that many verbs have. None, or False for a switch, means that it was not given."""

    name: str
    kind: Any
    default: Any = None

    def parameter(self) -> inspect.Parameter:
        """As typer reads it from a signature."""
        return inspect.Parameter(self.name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=self.kind)


def _text(flag: str, metavar: str, text: str, kind: Any = str) -> Any:
    return Annotated[kind | None, typer.Option(flag, metavar=metavar, help=text)]


def _switch(flag: str, text: str) -> Any:
    return Annotated[bool, typer.Option(flag, help=text)]


STORE = Shared("store", _text("--store", "URL", "file:///path, s3://bucket/prefix?endpoint=URL, or mem://name. [WEIGHTSYNC_STORE]"))
RUN = Shared("run", _text("--run", "RUN", "Name of the run in the store. [WEIGHTSYNC_RUN]"))
CACHE = Shared(
    "cache",
    _text(
        "--cache", "DIR", "Verified objects and publishers' bases; safe to delete; default ~/.cache/weightsync. [WEIGHTSYNC_CACHE]", Path
    ),
)
IMAGES = Shared("images", _text("--images", "DIR", "Where the image lies; default: shared memory. [WEIGHTSYNC_IMAGES]", Path))
TRUST = Shared(
    "trusted_keys",
    _text("--trusted-keys", "FILE", "TOML file of the public keys to trust; none: unsigned. [WEIGHTSYNC_TRUSTED_KEYS]", Path),
)
KEY = Shared("key", _text("--key", "FILE", "Signing key, for what this command writes. [WEIGHTSYNC_KEY]", Path))

POLL = Shared("poll_s", _text("--poll-s", "S", "Mean seconds between looks; default 2. [WEIGHTSYNC_POLL_S]", float))
LOG_FORMAT = Shared("log_format", _text("--log-format", "FORMAT", "text or json, on standard error. [WEIGHTSYNC_LOG_FORMAT]"))
METRICS = Shared(
    "metrics",
    _text("--metrics", "HOST:PORT", "Serve /metrics, /healthz and /readyz here; PORT alone: on loopback. [WEIGHTSYNC_METRICS]"),
)
NAME = Shared("name", _text("--name", "NAME", "This subscriber's name in the fleet; default: the host's. [WEIGHTSYNC_NAME]"))
REGION = Shared("region", _text("--region", "REGION", "The region that it is in. [WEIGHTSYNC_REGION]"))
SERVER = (
    Shared("server", _text("--server", "HOST:PORT", "The control plane. [WEIGHTSYNC_SERVER]")),
    Shared("server_ca", _text("--server-ca", "FILE", "PEM file of who signed its certificate: speak TLS. [WEIGHTSYNC_SERVER_CA]", Path)),
    Shared("server_cert", _text("--server-cert", "FILE", "PEM file of our own certificate. [WEIGHTSYNC_SERVER_CERT]", Path)),
    Shared("server_key", _text("--server-key", "FILE", "PEM file of its key. [WEIGHTSYNC_SERVER_KEY]", Path)),
    Shared("token_file", _text("--token-file", "FILE", "File with our bearer token. [WEIGHTSYNC_TOKEN_FILE]", Path)),
)

ALWAYS = (
    Shared("as_json", _switch("--json", "One JSON document on standard output (daemons: one line per event)."), default=False),
    Shared("config", _text("--config", "FILE", "TOML file of settings. [WEIGHTSYNC_CONFIG]", Path)),
    Shared("log_level", _text("--log-level", "LEVEL", "debug, info, warning or error, on standard error. [WEIGHTSYNC_LOG_LEVEL]")),
    Shared("debug", _switch("--debug", "Show a traceback with an error. [WEIGHTSYNC_DEBUG]"), default=False),
)


def _help(function: Verb) -> str:
    """The docstring, with its examples kept line by line (a backspace alone on a line means that to typer)."""
    return (inspect.getdoc(function) or "").replace("\nExamples:\n", "\n\b\nExamples:\n")


def verb(*shared: Shared) -> Callable[[Verb], Callable[..., int | None]]:
    """Adds `shared` and the flags that every verb has to a function (context, **own flags) -> exit code (None: 0)."""
    flags = (*shared, *ALWAYS)

    def decorate(function: Verb) -> Callable[..., int | None]:
        def command(**values: Any) -> int | None:
            with Context({flag.name: values.pop(flag.name) for flag in flags}) as context:
                return function(context, **values)

        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in list(inspect.signature(function).parameters.values())[1:]]
        parameters = [*own, *(flag.parameter() for flag in flags)]
        command.__name__, command.__doc__ = function.__name__, _help(function)
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010  typer reads the flags from here
        return command

    return decorate
