"""What the server allows and how often it looks. Every bound is here."""

from dataclasses import dataclass

MAX_MESSAGE_BYTES = 1 << 20  # lists are paged or pointed to
MAX_METADATA_BYTES = 8 << 10
MAX_TEXT = 1024  # characters of an error's message and remedy


@dataclass(frozen=True)
class Limits:
    """Bounds on what callers can make the server hold or do."""

    watchers: int = 16_384  # open streams, all runs together
    watchers_per_name: int = 64  # of them by one caller whose credential names it
    connections_streams: int = 4096  # calls at once on one connection
    unary_s: float = 30.0  # the longest that a call which is not a stream may take
    write_s: float = 20.0  # a watcher that does not take an event for so long is dropped with its position
    threads: int = 8  # store operations at once
    waiting: int = 256  # store operations that may wait for a thread; more are refused
    runs: int = 64  # runs open at once
    feeds: int = 256  # channels watched at once
    history: int = 4096  # moves of a channel that a watch can go back
    subscribers: int = 8192  # of one run
    leases: int = 10_000  # of one run
    leases_per_holder: int = 4
    lease_s: float = 3600.0  # the longest


@dataclass(frozen=True)
class Pace:
    """How often things happen, in seconds."""

    poll_s: float = 2.0  # a head is looked at again; a lost notice costs at most that
    bookmark_s: float = 10.0  # a sign of life on every watch
    report_s: float = 10.0  # what subscribers are asked for
    forget_s: float = 60.0  # a subscriber that is silent for so long is forgotten
    idle_s: float = 120.0  # a channel or run that nobody asks about is closed
    drain_s: float = 5.0  # calls may end by themselves for so long when the server stops


@dataclass(frozen=True)
class ServerSettings:
    """All of them."""

    limits: Limits = Limits()
    pace: Pace = Pace()
    reflection: bool = False
