"""The table of verbs, and the one place where errors become exit codes."""

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from weightsync.cli import failures, rl

VERBS = (
    "demo",
    "publish",
    "subscribe",
    "versions",
    "show",
    "diff",
    "restore",
    "verify",
    "promote",
    "rollback",
    "pin",
    "unpin",
    "gc",
    "repair",
    "copy",
    "keygen",
    "serve",
    "status",
    "top",
    "doctor",
)

HELP = """Carries model weights from a trainer to inference fleets as lossless deltas, bit for bit.

\b
  1. See the whole thing work on this machine
       weightsync demo
  2. Publish a checkpoint into a store, and follow it elsewhere
       weightsync publish ./step-100 --store s3://bucket/models --run tuning
       weightsync subscribe --store s3://bucket/models --run tuning --out ./weights
  3. Get a version back as an ordinary checkpoint, and prove it
       weightsync restore --store s3://bucket/models --run tuning --version 7 --out ./step-7
       weightsync verify --store s3://bucket/models --run tuning --version 7 --checkpoint ./step-7

\b
Settings come from flags, then WEIGHTSYNC_* variables, then a TOML file (--config).
Exit codes: 0 fine, 1 found wrong, 2 used wrong, 3 unavailable, 130 interrupted.
"""

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer names it only as a base; older releases take click's


def _version(asked: bool) -> None:
    if not asked:
        return
    from importlib import metadata

    try:
        print(f"weightsync {metadata.version('weightsync')}")
    except metadata.PackageNotFoundError:
        print("weightsync, from a source tree")
    raise typer.Exit


def build() -> typer.Typer:
    """All verbs. Their modules import nothing heavy before they are called."""
    app = typer.Typer(
        name="weightsync",
        help=HELP,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def weightsync(
        version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
    ) -> None:
        pass

    for name in VERBS:
        app.command(name)(getattr(import_module(f"weightsync.cli.{name}"), name))
    app.add_typer(rl.build())
    return app


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Raises nothing."""
    warnings.showwarning = _warn  # a sentence, without the line of our source
    if not arguments:
        run(["--help"])
        return failures.USED_WRONG
    as_json = "--json" in arguments
    try:
        code = build()(args=list(arguments), prog_name="weightsync", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        failure = failures.INTERRUPTION
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at exit
        return failures.BROKEN_PIPE
    except UsageError as error:
        failure = failures.usage(error.format_message(), _help_of(error))  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001  the outermost frame: people get a sentence, not a traceback
        if "--debug" in arguments or os.environ.get("WEIGHTSYNC_DEBUG"):
            failures.show_trace(error)
        failure = failures.describe(error)
    else:
        if code != failures.INTERRUPTION.exit_code:  # typer turns Ctrl-C into this, and no verb returns it
            return code if isinstance(code, int) else 0
        failure = failures.INTERRUPTION
    failure.report(as_json=as_json)
    return failure.exit_code


def _help_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"see {context.command_path} --help" if context else ""


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
