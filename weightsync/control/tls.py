"""TLS credentials from PEM files. A server's certificate, key and client CA are read again when the files change."""

from dataclasses import dataclass
from pathlib import Path

import grpc

from weightsync.errors import Invalid

MAX_PEM_BYTES = 1 << 20
_REMEDY = "check the path, and that the user of this process may read the file"


@dataclass(frozen=True)
class ServerTls:
    """`client_ca`: callers must show a certificate that it has signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True)
class ClientTls:
    """`ca`: who signed the server's certificate; None: the system's authorities. `certificate` and `key`: who we are.

    `server_name`: what the server's certificate must name, if not the host that is connected to.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Raises `Invalid` for files that cannot be read."""
    stamp = _stamp(tls)
    first = _configuration(tls)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC at each handshake; None: as before."""
        nonlocal stamp
        try:
            now = _stamp(tls)
            if now == stamp:
                return None
            made = _configuration(tls)
        except (Invalid, OSError):  # half replaced: the old ones go on
            return None
        stamp = now
        return made

    return grpc.dynamic_ssl_server_credentials(
        first,
        fetch,  # type: ignore[arg-type]  # None is allowed, and the stubs do not know
        require_client_authentication=tls.client_ca is not None,
    )


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Raises `Invalid` for files that cannot be read."""
    if (tls.certificate is None) != (tls.key is None):
        raise Invalid("a client certificate and its key belong together", remedy="give both")
    return grpc.ssl_channel_credentials(
        root_certificates=read_pem(tls.ca) if tls.ca else None,
        private_key=read_pem(tls.key) if tls.key else None,
        certificate_chain=read_pem(tls.certificate) if tls.certificate else None,
    )


def read_pem(path: Path) -> bytes:
    """The bytes of a PEM file. Raises `Invalid`, without repeating any of them."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PEM_BYTES + 1)
    except OSError as error:
        raise Invalid(f"PEM file {str(path)!r} cannot be read: {error.strerror}", remedy=_REMEDY) from None
    if len(data) > MAX_PEM_BYTES or b"-----BEGIN " not in data:
        raise Invalid(
            f"{str(path)!r} is no PEM file", remedy="name a file that begins with -----BEGIN; `openssl x509 -in FILE` shows what it is"
        )
    return data


def _configuration(tls: ServerTls) -> grpc.ServerCertificateConfiguration:
    client_ca = read_pem(tls.client_ca) if tls.client_ca else None
    return grpc.ssl_server_certificate_configuration([(read_pem(tls.key), read_pem(tls.certificate))], root_certificates=client_ca)


def _stamp(tls: ServerTls) -> tuple[tuple[int, int], ...]:
    try:
        stats = [path.stat() for path in (tls.certificate, tls.key, tls.client_ca) if path is not None]
    except OSError as error:
        raise Invalid(f"PEM file {str(error.filename)!r} cannot be read: {error.strerror}", remedy=_REMEDY) from None
    return tuple((stat.st_mtime_ns, stat.st_ino) for stat in stats)
