import pytest

from tests.control.certificates import Authority
from tests.control.plane import RUN
from weightsync.control.access import CallerRole, Gate
from weightsync.control.addresses import is_loopback
from weightsync.control.client import ControlClient
from weightsync.control.server import ControlServer
from weightsync.control.tls import ClientTls, ServerTls, channel_credentials, server_credentials
from weightsync.errors import Invalid, Unavailable


def server(listen, **more):
    return ControlServer(lambda run: None, Gate(), listen=listen, **more)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7443", "example.org:7443"])
def test_plaintext_beyond_this_host_must_be_asked_for(listen, tmp_path):
    with pytest.raises(Invalid, match="without TLS"):
        server(listen)
    server(listen, insecure=True)
    server(listen, tls=ServerTls(tmp_path / "x", tmp_path / "y"))


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:7443", "localhost:1", "127.8.8.8:65535"])
def test_loopback_addresses(listen):
    assert is_loopback(listen)
    server(listen)


@pytest.mark.parametrize("listen", ["", "7443", "127.0.0.1", "127.0.0.1:", ":7443", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1"])
def test_what_is_no_address(listen):
    with pytest.raises(Invalid, match="HOST:PORT"):
        is_loopback(listen)


def test_a_token_does_not_travel_in_plaintext(tmp_path):
    with pytest.raises(Invalid, match="plaintext"):
        ControlClient("192.0.2.1:7443", token="secret-0123456789")
    with pytest.raises(Invalid, match="plaintext"):
        ControlClient("192.0.2.1:7443", token_file=tmp_path / "token")
    ControlClient("192.0.2.1:7443", token="secret-0123456789", insecure=True).close()


def test_tls_without_client_certificates(plane, tmp_path):
    authority = Authority(tmp_path)
    plane.run(1)
    address = plane.serve(gate=Gate(anonymous=CallerRole.READER), tls=authority.server_tls(clients=False))
    assert plane.client(address, tls=ClientTls(authority.path)).get_channel(RUN).move.version == 1
    (tmp_path / "other").mkdir()
    with pytest.raises(Unavailable):
        plane.client(address, tls=ClientTls(Authority(tmp_path / "other").path)).get_channel(RUN)
    with pytest.raises(Unavailable):
        plane.client(address).get_channel(RUN)


def test_certificates_are_replaced_under_a_running_server(plane, tmp_path):
    old, new = (Authority(tmp_path / name) for name in ("old", "new") if (tmp_path / name).mkdir() is None)
    plane.run(1)
    tls = old.server_tls(clients=False)
    address = plane.serve(gate=Gate(anonymous=CallerRole.READER), tls=tls)
    plane.client(address, tls=ClientTls(old.path)).get_channel(RUN)
    certificate, key = new.server()
    key.replace(tls.key)
    certificate.replace(tls.certificate)
    plane.client(address, tls=ClientTls(new.path)).get_channel(RUN)
    tls.certificate.write_text("half writ")  # the good ones go on
    plane.client(address, tls=ClientTls(new.path)).get_channel(RUN)


def test_files_that_cannot_be_used(tmp_path):
    secret = tmp_path / "x.pem"
    secret.write_text("hunter2")
    with pytest.raises(Invalid) as caught:
        server_credentials(ServerTls(secret, secret))
    assert "hunter2" not in str(caught.value)
    with pytest.raises(Invalid, match="cannot be read"):
        server_credentials(ServerTls(tmp_path / "none", secret))
    with pytest.raises(Invalid, match="belong together"):
        channel_credentials(ClientTls(certificate=secret))


def test_a_port_that_is_taken(plane):
    address = plane.serve()
    with pytest.raises(Unavailable, match="another server"):
        plane.serve(listen=address)
