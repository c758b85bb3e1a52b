"""What the answer of an S3 server, or the lack of one, means for the caller.

Messages name the operation and the server's error code; never a URL, a header or a signature.
"""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from weightsync.errors import (
    Conflict,
    Corrupt,
    Denied,
    Invalid,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    Unsupported,
    WeightsyncError,
)
from weightsync.store.retry import Throttled

SDK_ERRORS = (BotoCoreError, ClientError, ResponseParserError)
BODY_ERRORS = (HTTPError, OSError)
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
SKEWED = "RequestTimeTooSkewed"
_THROTTLED = frozenset(
    {"SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"}
)
_NOT_SENT = (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError, SSLError)


class NotModified(WeightsyncError):
    """A conditional read found the tag unchanged; never leaves the package."""


class WrongPlace(Invalid):
    """The endpoint or bucket is not where the URL says: no other request will do better."""


_Known = tuple[type[WeightsyncError], str]
_FULL: _Known = (NoSpace, "free some space or raise the quota, then retry")
_RETRY: _Known = (Unavailable, "retry")
_DENIED: _Known = (Denied, "check the credentials and the bucket's policy; without s3:ListBucket a missing object looks forbidden")
_CODES: dict[str, _Known] = {
    **dict.fromkeys(EXPIRED, (Denied, "the credentials have expired: renew the session token or log in again")),
    **dict.fromkeys(("InsufficientStorage", "QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"), _FULL),
    # The body was damaged or cut on its way up: certainly not stored.
    **dict.fromkeys(("RequestTimeout", "BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "IncompleteBody"), _RETRY),
    "NoSuchBucket": (WrongPlace, "the bucket is not there: create it, or correct the store's URL"),
}
_STATUSES: dict[int, _Known] = {
    304: (NotModified, ""),
    401: _DENIED,
    403: _DENIED,
    404: (NotFound, ""),
    # Another writer is at work, and this request was not applied; but it may be the repetition of one that was.
    409: (OutcomeUnknown, "read back, then retry"),
    412: (Conflict, "read it again and decide again"),
    416: (Corrupt, "it ends before the bytes asked for"),
    501: (Unsupported, "the server lacks this operation: use another store"),
    507: _FULL,
}


def code_of(error: Exception) -> str:
    """The server's error code; "" when it did not answer."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def from_sdk(error: Exception, doing: str, *, write: bool, now_s: float) -> WeightsyncError:
    """The error to raise instead of one of `SDK_ERRORS`. `write`: a lost reply leaves the outcome unknown."""
    lost = OutcomeUnknown if write else Unavailable
    if isinstance(error, ClientError):
        return _from_answer(error.response, doing, lost, now_s)
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return Denied(
            f"{doing}: no complete S3 credentials were found", remedy="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
        )
    if isinstance(error, ParamValidationError):  # refused by the SDK itself: nothing was sent
        return Invalid(f"{doing}: no bucket or object can have that name", remedy="check the store's URL")
    if isinstance(error, _NOT_SENT):
        return Unavailable(f"{doing}: no connection to the S3 server ({type(error).__name__})", remedy="check the endpoint and the network")
    if isinstance(error, ResponseParserError):
        return lost(f"{doing}: the answer is not S3's", remedy="check the endpoint, and proxies on the way")
    return lost(f"{doing}: the connection broke ({type(error).__name__})", remedy="retry")


def _from_answer(response: Mapping[str, Any], doing: str, lost: type[Unavailable], now_s: float) -> WeightsyncError:
    code = str(response.get("Error", {}).get("Code", ""))
    meta = response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode", 0))
    headers = meta.get("HTTPHeaders", {})
    message = f"{doing}: S3 answered {status} {code}".rstrip()
    if code in _THROTTLED or status == 429:
        return _throttled(message, headers)
    if code == SKEWED:
        return Denied(f"{message}: this machine's clock differs from the server's{_skew(headers, now_s)}", remedy="set the clock (NTP)")
    known = _CODES.get(code) or _STATUSES.get(status)
    if known is not None:
        kind, remedy = known
        return kind(message, remedy=remedy)
    if 300 <= status < 400:
        return WrongPlace(f"{message}: redirects are not followed", remedy=_region_remedy(headers))
    if 400 <= status < 500:
        return Invalid(message, remedy="check the store's URL and region")
    # Anything else of 5xx, and an <Error> in a body with status 200, may come from a proxy after the server has done its work.
    return lost(message, remedy="retry") if lost is OutcomeUnknown else _throttled(message, headers)


def _region_remedy(headers: Mapping[str, str]) -> str:
    region = headers.get("x-amz-bucket-region")
    return (
        f"the bucket is in region {region!r}: put it into the store's URL"
        if region
        else "put the right endpoint and region into the store's URL"
    )


def _throttled(message: str, headers: Mapping[str, str]) -> Throttled:
    wait = headers.get("retry-after", "")
    return Throttled(message, remedy="retry later", retry_after_s=float(wait) if wait.isdecimal() else 0.0)


def _skew(headers: Mapping[str, str], now_s: float) -> str:
    try:
        theirs_s = parsedate_to_datetime(headers.get("date", "")).timestamp()
    except ValueError:
        return ""
    return f" by {now_s - theirs_s:+.0f} s"
