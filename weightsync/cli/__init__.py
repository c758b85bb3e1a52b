"""The command line: one file per verb, `options` and `output` shared, no logic of its own.

    app.py        the table of verbs; errors become exit codes
    options.py    flags that many verbs share, and the `Context` that they make
    output.py     tables for people, one JSON document for scripts, progress for who watches
    failures.py   what went wrong, in words and as an exit code

Exit codes: 0 fine, 1 found wrong, 2 used wrong, 3 unavailable, 130 interrupted.
"""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """The console script. Ctrl-C while modules still load is an interruption like any other, not a traceback."""
    try:
        from weightsync.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        print("error: stopped before it was done (interrupted)", file=sys.stderr)
        code = 130
    sys.exit(code)
