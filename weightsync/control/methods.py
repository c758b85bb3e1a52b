"""From a servicer's methods to gRPC's: parse, find out who calls, bound the time, turn errors into statuses. One way for all of them.

A servicer has, for each method `DoThis` of its service, `async def do_this(self, request, call)`. A method that is not a stream returns
the response; one that streams writes with `call.write`.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Never

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from weightsync.control.access import Gate, Identity
from weightsync.control.settings import Limits
from weightsync.control.statuses import STATUSES, status_of, trailers_of
from weightsync.errors import Invalid, OutcomeUnknown, Unavailable, WeightsyncError

logger = logging.getLogger(__name__)

WRITES = {"MoveChannel", "Acquire", "Renew", "Release"}  # too late to say that nothing happened


@dataclass(frozen=True)
class Call:
    """One call: who makes it, and its gRPC context."""

    method: str
    identity: Identity
    context: Any
    gate: Gate

    def speaks_for(self, name: str) -> None:
        """Raises `Denied` unless the caller may speak for the subscriber called `name`."""
        self.gate.check_name(self.identity, name)

    def recheck(self) -> None:
        """Raises `Unauthenticated` or `Denied` when the credential no longer holds: streams live long."""
        self.gate.admit(self.method, self.context)

    async def write(self, data: bytes) -> None:
        """Sends an encoded message on a stream; returns when the transport has taken it."""
        await self.context.write(data)


def handlers(services: Iterable[tuple[ServiceDescriptor, object]], gate: Gate, limits: Limits) -> list[grpc.GenericRpcHandler]:
    """gRPC's handlers of all methods of all services."""
    return [
        grpc.method_handlers_generic_handler(
            service.full_name, {method.name: _handler(method, servicer, gate, limits) for method in service.methods}
        )
        for service, servicer in services
    ]


def snake(name: str) -> str:
    """`GetVersion` -> `get_version`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def path_of(method: MethodDescriptor) -> str:
    """`/package.Service/Method`."""
    return f"/{method.containing_service.full_name}/{method.name}"


def _handler(method: MethodDescriptor, servicer: object, gate: Gate, limits: Limits) -> "grpc.RpcMethodHandler[Any, Any]":
    act = getattr(servicer, snake(method.name))
    parse = _parser(method)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_stream(act, parse, Door(path_of(method), gate)))
    late = OutcomeUnknown if method.name in WRITES else Unavailable
    slow = late(f"{path_of(method)} took longer than {limits.unary_s:g} s: the store is slow", remedy="retry later")
    return grpc.unary_unary_rpc_method_handler(_unary(act, parse, Door(path_of(method), gate), limits.unary_s, slow))


def _parser(method: MethodDescriptor) -> Callable[[bytes], Message]:
    kind = GetMessageClass(method.input_type)

    def parse(data: bytes) -> Message:
        try:
            return kind.FromString(data)
        except DecodeError:
            raise Invalid(f"the request is no {method.input_type.full_name}", remedy="make it from the protos of this release") from None

    return parse


Act = Callable[[Message, Call], Awaitable[Any]]


@dataclass(frozen=True)
class Door:
    """The way into one method."""

    path: str
    gate: Gate

    def enter(self, context: Any) -> Call:
        """Raises `Unauthenticated`, `Denied`."""
        return Call(self.path, self.gate.admit(self.path, context), context, self.gate)


def _unary(
    act: Act, parse: Callable[[bytes], Message], door: Door, most_s: float, slow: WeightsyncError
) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def behave(data: bytes, context: Any) -> bytes:
        try:
            call = door.enter(context)
            async with asyncio.timeout(most_s):
                response = await act(parse(data), call)
            return bytes(response.SerializeToString())
        except TimeoutError:
            await _abort(context, door.path, slow)
        except Exception as error:  # noqa: BLE001  the outermost frame of a call
            await _abort(context, door.path, error)

    return behave


def _stream(act: Act, parse: Callable[[bytes], Message], door: Door) -> Callable[[bytes, Any], Awaitable[None]]:
    async def behave(data: bytes, context: Any) -> None:
        try:
            call = door.enter(context)
            await act(parse(data), call)
        except Exception as error:  # noqa: BLE001  the outermost frame of a call
            await _abort(context, door.path, error)

    return behave


async def _abort(context: Any, path: str, error: Exception) -> Never:
    """Ends the call with the error's status. What was not raised on purpose is a bug: logged here, and the caller gets no trace."""
    if not isinstance(error, WeightsyncError):
        if isinstance(error, grpc.aio.AbortError | grpc.aio.UsageError | grpc.aio.InternalError):
            raise error  # the peer is gone
        logger.error("%s failed", path, exc_info=error)
        error = WeightsyncError(f"{path} failed in the server", remedy="see the server's log, and report it")
    await context.abort(status_of(error), str(error.message)[:256] if error.kind in _KINDS else "failed", trailers_of(error))
    raise AssertionError("abort returns")


_KINDS = {kind.kind for kind in STATUSES}
