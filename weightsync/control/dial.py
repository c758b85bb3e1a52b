"""A client's connection: options, credentials, and calls that raise `weightsync.errors`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from weightsync.control.addresses import is_loopback
from weightsync.control.settings import MAX_MESSAGE_BYTES
from weightsync.control.statuses import error_of
from weightsync.control.tls import ClientTls, channel_credentials
from weightsync.errors import Invalid

M = TypeVar("M", bound=Message)
MAX_TOKEN_BYTES = 4096

OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A frozen server is noticed in about 15 s: the keepalive timeout alone misses one whose kernel still acknowledges.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 10_000),  # the time that one attempt gets: TLS to another continent, a busy server
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),  # closing one client leaves the others alone
]


class Connection:
    """One channel to one server. Safe to use from many threads."""

    def __init__(self, address: str, *, tls: ClientTls | None, token: str | None, token_file: Path | None, insecure: bool) -> None:
        """Connects when first used. Raises `Invalid` for a token that would travel in plaintext beyond this host, without `insecure`."""
        if token is not None and token_file is not None:
            raise Invalid("a token and a file with one were given", remedy="give one of them")
        has_token = token is not None or token_file is not None
        if has_token and tls is None and not insecure and not is_loopback(address):
            raise Invalid(f"the token would go to {address} in plaintext", remedy="use TLS, or say that it may")
        self.address = address
        self._token, self._token_file = token, token_file
        options = list(OPTIONS)
        if tls is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            if tls.server_name is not None:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            self._channel = grpc.secure_channel(address, channel_credentials(tls), options)

    def call(self, path: str, request: Message, response: type[M], timeout_s: float) -> M:
        """The answer of a call that is not a stream. Raises the server's error as if it had happened here."""
        method: Callable[..., Any] = self._channel.unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        try:
            answer: M = method(request, timeout=timeout_s, metadata=self.metadata())
        except grpc.RpcError as error:
            raise error_of(error, self.address) from None
        except ValueError:
            raise self._is_closed() from None
        return answer

    def stream(self, path: str, request: Message, response: type[Message]) -> Any:
        """A running stream: an iterator of responses that raises `grpc.RpcError` (see `statuses.error_of`) and can be cancelled."""
        method: Callable[..., Any] = self._channel.unary_stream(
            path, request_serializer=type(request).SerializeToString, response_deserializer=response.FromString
        )
        try:
            return method(request, metadata=self.metadata())
        except ValueError:
            raise self._is_closed() from None

    def _is_closed(self) -> Invalid:
        # What grpc calls a ValueError. Threads that still read may call once more while their owner closes us.
        return Invalid(f"the connection to {self.address} is closed", remedy="make another client")

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call. A token file is read each time: tokens are renewed under a running process."""
        token = self._token
        if self._token_file is not None:
            try:
                with self._token_file.open("rb") as file:
                    token = file.read(MAX_TOKEN_BYTES).decode("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                why = (error.strerror or type(error).__name__) if isinstance(error, OSError) else "it is not ASCII text"
                raise Invalid(
                    f"the token file {str(self._token_file)!r} cannot be read: {why}",
                    remedy="check --token-file, and that the user of this process may read it",
                ) from None
        if token is None:
            return ()
        if not (token.isascii() and token.isprintable()):
            raise Invalid("a token is printable ASCII", remedy="write the token into the file, and nothing else")
        return (("authorization", f"Bearer {token}"),)

    def close(self) -> None:
        """Ends all calls."""
        self._channel.close()
