"""The backend that a URL names."""

import ipaddress
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from weightsync.errors import Invalid
from weightsync.store.api import ObjectStore
from weightsync.store.file import FileStore
from weightsync.store.memory import named

FORMS = "file:///absolute/path, s3://bucket/prefix?endpoint=http://host:port&region=name, or mem://name"
_REMEDY = f"a store is {FORMS}"
_METADATA_HOSTS = {"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
_METADATA_ADDRESSES = {ipaddress.ip_address("fd00:ec2::254"), ipaddress.ip_address("fd20:ce::254"), ipaddress.ip_address("100.100.100.200")}
_S3_QUERY = {"endpoint", "region", "profile"}


def open_store(url: str, *, allow_link_local: bool = False, **settings: Any) -> ObjectStore:
    """The store at `url`; `settings` are keyword arguments of the backend (`clock`, and what `S3Store` takes).

    An endpoint that is a link-local address or a metadata service is refused unless `allow_link_local`: whoever may name a store must not
    get at what only this machine can ask. Names are not resolved here.

    Opens nothing yet: a store that cannot be reached, or a directory that is not there, shows at the first operation. Raises `Invalid`.
    """
    parts = _split(url)
    opener = _OPENERS.get(parts.scheme)
    if opener is None or parts.fragment:
        raise Invalid(f"store {url!r} is of no known kind", remedy=_REMEDY)
    if parts.scheme == "s3" and not allow_link_local:
        _refuse_link_local(dict(parse_qsl(parts.query)).get("endpoint", ""))
    return opener(parts, settings)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # looked at by nobody else
    except ValueError as error:
        raise Invalid(f"store {url!r} is no URL: {error}", remedy=_REMEDY) from None
    if parts.username is not None or parts.password is not None:
        raise Invalid("a store URL must not contain credentials", remedy="put them into the environment or a profile")
    return parts


def _refuse_link_local(endpoint: str) -> None:
    host = (_split(endpoint).hostname or "").rstrip(".")
    if host in _METADATA_HOSTS or _is_link_local(host):
        raise Invalid(
            f"S3 endpoint {endpoint!r} is link-local, or a cloud's metadata service",
            remedy="name another endpoint; if it is meant, set WEIGHTSYNC_ALLOW_LINK_LOCAL=true (allow_link_local)",
        )


def _is_link_local(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(host))  # 0xa9fea9fe, 169.254.43518 and their kin
        except (OSError, ValueError):
            return False
    inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None) or address
    return inner.is_link_local or address in _METADATA_ADDRESSES


def _open_file(parts: SplitResult, settings: dict[str, Any]) -> ObjectStore:
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query:
        raise Invalid(f"store {parts.geturl()!r} names no absolute path of this machine", remedy=_REMEDY)
    path = unquote(parts.path)
    if "\0" in path:
        raise Invalid("a store's path must not contain NUL", remedy=_REMEDY)
    return FileStore(path, **settings)


def _open_memory(parts: SplitResult, settings: dict[str, Any]) -> ObjectStore:
    if not parts.netloc or parts.path.strip("/") or parts.query or settings:
        raise Invalid(f"store {parts.geturl()!r} is not mem://name", remedy="a memory store has a name and nothing else")
    return named(parts.netloc)


def _open_s3(parts: SplitResult, settings: dict[str, Any]) -> ObjectStore:
    query: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not parts.netloc or not set(query) <= _S3_QUERY:
        raise Invalid(f"store {parts.geturl()!r} has no bucket, or settings other than {', '.join(sorted(_S3_QUERY))}", remedy=_REMEDY)
    endpoint = _split(query.get("endpoint", "http://default"))
    if endpoint.scheme not in ("http", "https") or not endpoint.hostname:
        raise Invalid(f"S3 endpoint {query['endpoint']!r} cannot be used", remedy="write endpoint=http://host:port or https://host")
    from weightsync.store.s3 import S3Store  # noqa: PLC0415  boto3 takes a quarter of a second to import

    return S3Store(parts.netloc, unquote(parts.path.strip("/")), **query, **settings)


_OPENERS: dict[str, Callable[[SplitResult, dict[str, Any]], ObjectStore]] = {"file": _open_file, "mem": _open_memory, "s3": _open_s3}
