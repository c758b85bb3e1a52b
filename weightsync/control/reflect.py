"""Server reflection, for `grpcurl` and its like. Off unless asked for, and not for callers who are not known."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from weightsync.control.access import Gate
from weightsync.control.statuses import status_of, trailers_of
from weightsync.errors import WeightsyncError

_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
_PATH = f"/{_SERVICE.full_name}/ServerReflectionInfo"


def reflection_handler(services: Sequence[str], gate: Gate) -> grpc.GenericRpcHandler:
    """Describes `services`, health and itself."""
    servicer: Any = reflection.aio.ReflectionServicer([*services, "grpc.health.v1.Health", _SERVICE.full_name])

    async def behave(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            gate.admit(_PATH, context)
        except WeightsyncError as error:
            await context.abort(status_of(error), error.message, trailers_of(error))
        async for response in servicer.ServerReflectionInfo(requests, context):
            yield response

    handler = grpc.stream_stream_rpc_method_handler(
        behave,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_SERVICE.full_name, {"ServerReflectionInfo": handler})
