"""Who may work on the publisher's base: the publisher at once, the work beside it when the publisher does not want to."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Publishing waits for one turn of the work beside it at most; that work waits for as long as it takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._publishing = 0
        self._turn = False
        self._closed = False

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """The base is the publisher's while the block runs."""
        with self._changed:
            self._publishing += 1
            self._changed.wait_for(lambda: not self._turn)
        try:
            yield
        finally:
            with self._changed:
                self._publishing -= 1
                self._changed.notify_all()

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """A short piece of the work beside: the base does not change while the block runs. False: there are no more turns."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._publishing)
            self._turn = going = not self._closed
        try:
            yield going
        finally:
            with self._changed:
                self._turn = False
                self._changed.notify_all()

    def close(self) -> None:
        """No more turns."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._turn)
