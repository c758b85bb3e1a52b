"""grpc.health.v1, for load balancers and orchestrators, who have no credential."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2

from weightsync.control import health
from weightsync.control.access import Gate
from weightsync.control.server import SERVICES

Status = health_pb2.HealthCheckResponse


def ask(address, service="", method="Check"):
    opened = grpc.insecure_channel(address)
    call = opened.unary_stream(
        f"/grpc.health.v1.Health/{method}",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=Status.FromString,
    )(health_pb2.HealthCheckRequest(service=service))
    call.opened = opened
    return call


@pytest.fixture
def address(plane):
    return plane.serve(gate=Gate())  # nobody is let in


@pytest.mark.parametrize("service", ["", *(service.full_name for service in SERVICES)])
def test_it_serves(address, service):
    assert next(ask(address, service)).status == Status.SERVING
    assert next(ask(address, service, "Watch")).status == Status.SERVING


def test_what_is_not_here(address):
    with pytest.raises(grpc.RpcError) as caught:
        next(ask(address, "nope.Service"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert next(ask(address, "nope.Service", "Watch")).status == Status.SERVICE_UNKNOWN


def test_a_watch_hears_that_the_server_stops_and_ends():
    heard = []

    class Call:
        async def write(self, data):
            heard.append(Status.FromString(data).status)

    async def watch():
        servicer = health.HealthServicer([])
        servicer.start()
        task = asyncio.create_task(servicer.watch(health_pb2.HealthCheckRequest(), Call()))
        while not heard:
            await asyncio.sleep(0)
        servicer.end()
        await task

    asyncio.run(asyncio.wait_for(watch(), 20))
    assert heard == [Status.SERVING, Status.NOT_SERVING]


def test_watches_are_bounded(address, monkeypatch):
    monkeypatch.setattr(health, "MAX_WATCHERS", 2)
    calls = [ask(address, method="Watch") for _ in range(3)]
    for call in calls[:2]:
        next(call)
    with pytest.raises(grpc.RpcError) as caught:
        next(calls[2])
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
