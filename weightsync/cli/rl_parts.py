"""What the verbs of the loop share."""

from collections.abc import Iterator
from contextlib import contextmanager

from weightsync.errors import Unsupported


@contextmanager
def needs_the_loop() -> Iterator[None]:
    """Turns a missing package into an error with its remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Unsupported(f"the loop needs {error.name}, which is not installed", remedy="pip install 'weightsync[rl]'") from error
