"""One S3 client of botocore (the part of boto3 that makes requests), tuned for large objects; all requests of a store go through `call`."""

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError, ProfileNotFound
from botocore.loaders import create_loader

from weightsync.clock import Clock
from weightsync.errors import Invalid
from weightsync.store.s3.errors import EXPIRED, SDK_ERRORS, SKEWED, code_of, from_sdk

T = TypeVar("T")
# Reading the description of S3 takes 80 ms; clients share it.
_LOADER = create_loader()
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60  # without a single byte
CONNECTIONS = 64
# Tries with new credentials or a new signature: these failures say for certain that nothing was done.
_RENEWALS = 2
# The answer to a HEAD has no body to tell the code; AWS gives this for an expired token.
_BARE = "400"


class Client:
    """Access to one endpoint. Thread-safe."""

    def __init__(self, *, endpoint: str | None, region: str | None, profile: str | None, clock: Clock) -> None:
        self._endpoint = endpoint
        self._region = region
        self._profile = profile
        self._clock = clock
        self._lock = threading.Lock()
        self._sdk = self._connect()

    def call(self, request: Callable[[Any], T], doing: str, *, write: bool = False) -> T:
        """The result of `request(sdk)`, once; again only with renewed credentials or signature, when the server refused the old ones.

        `request` must make its body anew each time. `doing` starts error messages. Raises the errors of `weightsync.errors`.
        """
        for renewals_left in range(_RENEWALS, -1, -1):
            sdk = self._sdk
            try:
                return request(sdk)
            except SDK_ERRORS as error:
                code = code_of(error)
                if not renewals_left or code not in EXPIRED | {SKEWED, _BARE}:
                    raise from_sdk(error, doing, write=write, now_s=self._clock.now_s()) from _without_secrets(error)
                if code != SKEWED:
                    self._renew(sdk)
        raise AssertionError("unreachable: the last round returns or raises")

    def close(self) -> None:
        """Closes the connections."""
        self._sdk.close()

    def _renew(self, stale: Any) -> None:
        """Reads the credentials again from where boto3 finds them; once for all threads that met the stale ones."""
        with self._lock:
            if self._sdk is stale:
                self._sdk = self._connect()

    def _connect(self) -> Any:
        try:
            session = botocore.session.Session(profile=self._profile)
            session.register_component("data_loader", _LOADER)
            region = self._region or session.get_config_variable("region") or "us-east-1"
            sdk: Any = session.create_client("s3", endpoint_url=self._endpoint, region_name=region, config=self._config())
        except ProfileNotFound as error:
            raise Invalid(f"AWS profile {self._profile!r} is not configured", remedy="name another profile in the store's URL") from error
        except ValueError as error:
            raise Invalid(f"S3 endpoint {self._endpoint!r} cannot be used", remedy="write http://host:port or https://host") from error
        sdk.meta.events.register_last("before-call.s3", _adjust)
        return sdk

    def _config(self) -> Config:
        s3: Any = {"payload_signing_enabled": False}
        if self._endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
            s3["addressing_style"] = "path"  # other servers seldom have a DNS name for each bucket
        return Config(
            s3=s3,
            # Both: "when_supported" wraps bodies into aws-chunked, which many servers refuse, and verifies what BLAKE3 verifies later.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"total_max_attempts": 1, "mode": "standard"},
            signature_version="s3v4",
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=CONNECTIONS,
            tcp_keepalive=True,
        )


def _adjust(model: Any, params: Mapping[str, Any], **_: Any) -> None:
    """Called by botocore before each request."""
    # botocore follows a bucket to another region by itself; this makes it think that the request was redirected already.
    params["context"].setdefault("s3_redirect", {})["redirected"] = True
    if model.name == "UploadPart":
        # Waiting for "100 Continue" costs a round trip a part, and the upload's first request has shown that we may write.
        params["headers"].pop("Expect", None)


def _without_secrets(error: Exception) -> Exception | None:
    # Other errors of botocore can carry URLs with signatures in their text.
    return error if isinstance(error, ClientError) else None
