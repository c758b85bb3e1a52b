"""A certificate authority for tests."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from weightsync.control.tls import ClientTls, ServerTls

NOW = dt.datetime.now(dt.UTC)  # noqa: TID251  certificates are judged by the machine's clock
DAY = dt.timedelta(days=1)


@dataclass
class Authority:
    """Signs what is asked for and keeps it in `directory`."""

    directory: Path
    name: str = "test authority"

    def __post_init__(self):
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        self.certificate = self._sign(subject, self.key.public_key(), authority=True)
        self.path = self._write("ca.crt", self.certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str = "server") -> tuple[Path, Path]:
        return self._issue(name, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))

    def server_tls(self, *, clients: bool = True) -> ServerTls:
        certificate, key = self.server()
        return ServerTls(certificate, key, self.path if clients else None)

    def client_tls(self, role: str | None, name: str = "x", *, expired: bool = False) -> ClientTls:
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if role is not None:
            attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, role))
        certificate, key = self._issue(f"{role}-{name}-{expired}", x509.Name(attributes), expired=expired)
        return ClientTls(self.path, certificate, key)

    def _issue(self, file: str, subject: x509.Name, *, expired: bool = False) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(subject, key.public_key(), expired=expired)
        private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return self._write(f"{file}.crt", certificate.public_bytes(serialization.Encoding.PEM)), self._write(f"{file}.key", private)

    def _sign(self, subject: x509.Name, public, *, authority: bool = False, expired: bool = False) -> x509.Certificate:
        issuer = subject if authority else self.certificate.subject
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW - 3 * DAY)
            .not_valid_after(NOW - DAY if expired else NOW + DAY)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def _write(self, name: str, data: bytes) -> Path:
        path = self.directory / name
        path.write_bytes(data)
        return path
