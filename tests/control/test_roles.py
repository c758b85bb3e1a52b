"""Every kind of caller against every method: each cell as specified."""

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tests.control.certificates import Authority
from tests.control.plane import RUN, Plane
from weightsync.control.access import ACCESS, Gate, Tokens
from weightsync.control.dial import Connection
from weightsync.control.server import SERVICES

Code = grpc.StatusCode

TOKENS = {role: f"{role}-token-0123456789" for role in ("reader", "subscriber", "publisher", "operator")}
REQUESTS = {
    "GetVersion": {"version": 1},
    "Report": {"subscriber": "host-1"},
    "Register": {"subscriber": "host-1"},
    "MoveChannel": {"channel": "serving", "record": b"no move"},
    "Acquire": {"holder": "host-1", "version": 1},
    "Renew": {"holder": "host-1", "version": 1},
    "Release": {"holder": "host-1", "version": 1},
}

# What comes back when the call is let in. `MoveChannel` gets as far as finding that the record is no move.
LET_IN = {
    "Report": {Code.OK, Code.NOT_FOUND},
    "Renew": {Code.OK, Code.NOT_FOUND},
    "MoveChannel": {Code.INVALID_ARGUMENT},
}

READ = {"reader", "subscriber", "publisher", "operator"}
SUBSCRIBE = READ - {"reader"}
MATRIX = {
    "VersionService/GetVersion": READ,
    "VersionService/ListVersions": READ,
    "VersionService/WatchVersions": READ,
    "VersionService/Notify": {"publisher", "operator"},
    "ChannelService/GetChannel": READ,
    "ChannelService/ListChannels": READ,
    "ChannelService/MoveChannel": {"operator"},
    "ChannelService/ChannelHistory": READ,
    "FleetService/Register": SUBSCRIBE,
    "FleetService/Report": SUBSCRIBE,
    "FleetService/ListSubscribers": READ,
    "FleetService/WatchFleet": READ,
    "LeaseService/Acquire": SUBSCRIBE,
    "LeaseService/Renew": SUBSCRIBE,
    "LeaseService/Release": SUBSCRIBE,
}
METHODS = {f"{service.name}/{method.name}": method for service in SERVICES for method in service.methods}
CALLERS = ("nobody", "wrong token", "expired certificate", "no role in certificate", "reader", "subscriber", "publisher", "operator")


@pytest.fixture(scope="module")
def by_tokens(tmp_path_factory):
    """A server that knows callers by tokens: the status of (caller, method)."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    path.write_text("".join(f'[[tokens]]\ntoken = "{token}"\nrole = "{role}"\n' for role, token in TOKENS.items()))
    with Plane() as plane:
        plane.run(1)
        address = plane.serve(gate=Gate(tokens=Tokens(path)), reflection=True)
        given = {**TOKENS, "wrong token": "nobody-knows-this-token", "nobody": None}
        connections = {
            caller: Connection(address, tls=None, token=token, token_file=None, insecure=False) for caller, token in given.items()
        }
        yield lambda caller, name: status(connections[caller], name)
        for connection in connections.values():
            connection.close()


@pytest.fixture(scope="module")
def by_certificates(tmp_path_factory):
    """A server that knows callers by certificates."""
    authority = Authority(tmp_path_factory.mktemp("ca"))
    with Plane() as plane:
        plane.run(1)
        address = plane.serve(gate=Gate(certificates=True), tls=authority.server_tls(), reflection=True)
        given = {role: authority.client_tls(role, "host-1") for role in TOKENS}
        given |= {
            "expired certificate": authority.client_tls("operator", expired=True),
            "no role in certificate": authority.client_tls("emperor"),
            "nobody": type(given["reader"])(authority.path),
        }
        connections = {caller: Connection(address, tls=tls, token=None, token_file=None, insecure=False) for caller, tls in given.items()}
        yield lambda caller, name: status(connections[caller], name)
        for connection in connections.values():
            connection.close()


def status(connection: Connection, name: str) -> grpc.StatusCode:
    """That of a call; of a stream, once its first message has come."""
    method = METHODS[name]
    kind = GetMessageClass(method.input_type)
    request = kind(run=RUN, **REQUESTS.get(method.name, {}))
    path = f"/{method.containing_service.full_name}/{method.name}"
    call = connection.stream(path, request, GetMessageClass(method.output_type))
    try:
        next(call)
    except grpc.RpcError as error:
        return error.code()
    finally:
        call.cancel()
    return Code.OK


def expected(caller: str, name: str) -> set[grpc.StatusCode]:
    if caller not in TOKENS:
        return {Code.UNAUTHENTICATED}
    if caller not in MATRIX[name]:
        return {Code.PERMISSION_DENIED}
    return LET_IN.get(name.partition("/")[2], {Code.OK})


def test_the_matrix_has_every_method():
    assert set(MATRIX) == set(METHODS)
    assert {path for path in ACCESS if path.startswith("/weightsync.")} == {f"/weightsync.v1.{name}" for name in METHODS}


@pytest.mark.parametrize("caller", ["nobody", "wrong token", "reader", "subscriber", "publisher", "operator"])
@pytest.mark.parametrize("name", MATRIX)
def test_by_token(by_tokens, caller, name):
    assert by_tokens(caller, name) in expected(caller, name)


@pytest.mark.parametrize("caller", ["no role in certificate", "reader", "subscriber", "publisher", "operator"])
@pytest.mark.parametrize("name", MATRIX)
def test_by_certificate(by_certificates, caller, name):
    assert by_certificates(caller, name) in expected(caller, name)


@pytest.mark.parametrize("caller", ["nobody", "expired certificate"])
@pytest.mark.parametrize("name", MATRIX)
def test_tls_itself_turns_away(by_certificates, caller, name):
    """There is no connection, so there is no better status."""
    assert by_certificates(caller, name) is Code.UNAVAILABLE


def test_health_is_for_all_and_reflection_for_those_who_are_known(tmp_path):
    path = tmp_path / "tokens.toml"
    path.write_text(f'tokens = [{{token = "{TOKENS["reader"]}", role = "reader"}}]')
    with Plane() as plane:
        address = plane.serve(gate=Gate(tokens=Tokens(path)), reflection=True)

        def reflect(token):
            with grpc.insecure_channel(address) as channel:
                call = channel.stream_stream(
                    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                    request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                    response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
                )
                metadata = (("authorization", f"Bearer {token}"),) if token else ()
                answers = call(iter([reflection_pb2.ServerReflectionRequest(list_services="*")]), metadata=metadata)
                try:
                    return {service.name for service in next(answers).list_services_response.service}
                except grpc.RpcError as error:
                    return error.code()

        assert {service.full_name for service in SERVICES} < reflect(TOKENS["reader"])
        assert reflect(None) is Code.UNAUTHENTICATED
        with grpc.insecure_channel(address) as channel:
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            for service in SERVICES:
                assert check(health_pb2.HealthCheckRequest(service=service.full_name)).status == 1


def test_reflection_is_off_unless_asked_for(plane):
    with grpc.insecure_channel(plane.serve()) as channel:
        call = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        with pytest.raises(grpc.RpcError) as caught:
            next(call(iter([b""])))
    assert caught.value.code() is Code.UNIMPLEMENTED
