"""HOST:PORT."""

import ipaddress

from weightsync.errors import Invalid


def is_loopback(listen: str) -> bool:
    """Whether HOST:PORT can be reached from this host only. Raises `Invalid` for what is no such address."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
        raise Invalid(f"{listen!r} is not HOST:PORT", remedy="write for example 127.0.0.1:7443 or [::1]:7443")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
