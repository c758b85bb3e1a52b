"""What a main loop waits on: its end, or news. Safe to use from signal handlers, which `threading.Event` is not."""

from queue import Empty, SimpleQueue


class Bell:
    """`ring` and `end` may be called from any thread and from a signal handler; `wait` by one thread."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()  # its put() is reentrant; an Event set in a handler can deadlock with its waiter
        self._ended = False

    def ring(self) -> None:
        """There is news: the wait that goes on, or the next one, ends at once."""
        self._rings.put(None)

    def end(self) -> None:
        """It is over: no wait lasts from now on."""
        self._ended = True
        self._rings.put(None)

    def is_set(self) -> bool:
        """Whether it is over."""
        return self._ended

    def wait(self, timeout: float) -> bool:
        """Waits for `timeout` seconds at most; True when it came back sooner. Several rings count once."""
        if self._ended:
            return True
        try:
            self._rings.get(timeout=max(0.0, timeout))
        except Empty:
            return False
        self._forget()
        return True

    def _forget(self) -> None:
        try:
            while True:
                self._rings.get_nowait()
        except Empty:
            return
