"""Talking to systemd (`Type=notify`): ready, stopping, alive. Nothing happens where nobody listens. See sd_notify(3)."""

import logging
import os
import socket
from collections.abc import Mapping

logger = logging.getLogger(__name__)


class Notifier:
    """Sends datagrams to `$NOTIFY_SOCKET`. A notice that cannot be sent is logged and lost."""

    def __init__(self, environment: Mapping[str, str] | None = None, *, pid: int | None = None) -> None:
        found = os.environ if environment is None else environment
        address = found.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = _watchdog_s(found, os.getpid() if pid is None else pid) if address else None

    @property
    def watchdog_s(self) -> float | None:
        """How often `alive` must be said, in seconds, with room to spare; None when nobody asks for it."""
        return self._watchdog_s

    def ready(self) -> None:
        """Started."""
        self._send("READY=1")

    def stopping(self) -> None:
        """Going to end."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Not stuck."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self._send("STATUS=" + text.replace("\n", " "))

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as end:
                end.settimeout(1.0)
                end.sendto(message.encode("utf-8", "replace"), self._address)
        except OSError as error:
            logger.warning("the service manager was not told %s: %s", message.partition("=")[0], error)


def _watchdog_s(environment: Mapping[str, str], pid: int) -> float | None:
    """Half of what systemd waits, as sd_watchdog_enabled(3) advises; None when it is not for this process."""
    asked, whom = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not asked.isdigit() or int(asked) == 0 or (whom and whom != str(pid)):
        return None
    return int(asked) / 2e6
