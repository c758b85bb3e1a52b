"""Every object key is formatted and parsed here. Keys are relative to the store's root."""

import re
from dataclasses import dataclass

from weightsync.format.names import check_plain

_PAYLOAD = re.compile(r"versions/([1-9][0-9]*)/payloads/(0|[1-9][0-9]*)-([0-9a-z]+)")
_SHARD = re.compile(r"shards/([0-9a-z]+)-([1-9][0-9]*)-(0|[1-9][0-9]*)/([0-9a-f]{64})")
_LOG = re.compile(r"channels/([^/]+)/log/([1-9][0-9]*)-([0-9a-f]{16})")
_DIGESTS = re.compile(r"digests/([0-9a-z]+)-([1-9][0-9]*)/([0-9a-f]{64})")
_MANIFEST = re.compile(r"versions/([1-9][0-9]*)/manifest")
_PIN = re.compile(r"pins/([1-9][0-9]*)")
_NAME = re.compile(r"(?:versions/|payloads/|(?:digests|shards)/[0-9a-z]+-)([1-9][0-9]*)(?:[/-].*)?")
LATEST = "latest"


def version_name(version: int) -> str:
    """What the boundary calls a version."""
    return f"versions/{version}"


def payload_name(version: int, base: int, writer: str) -> str:
    """What the boundary calls a payload: its record and its shards, whether both exist or not."""
    return f"payloads/{version}/{base}-{writer}"


def digests_name(writer: str, version: int) -> str:
    """What the boundary calls the leaves and sums that `writer` made for `version`."""
    return f"digests/{writer}-{version}"


def version_of_name(name: str) -> int:
    """The version that something the boundary names belongs to; 0 where the name says none."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else 0


@dataclass(frozen=True)
class RunKeys:
    """Keys of one run."""

    run: str

    def __post_init__(self) -> None:
        check_plain(self.run, "run")

    @property
    def prefix(self) -> str:
        """What all keys of the run start with."""
        return f"{self.run}/"

    @property
    def run_record(self) -> str:
        """The run's own record."""
        return f"{self.run}/run.json"

    def head(self, channel: str) -> str:
        """The one object of a channel that is swapped."""
        return f"{self.run}/channels/{check_plain(channel, 'channel')}/head"

    def log(self, channel: str, sequence: int, write_id: str) -> str:
        """A move's bytes, written before the swap."""
        return f"{self.run}/channels/{check_plain(channel, 'channel')}/log/{sequence}-{write_id}"

    def logs(self, channel: str, leading: str = "") -> str:
        """Prefix of a channel's moves; of those alone whose sequence starts with the digits `leading`."""
        return f"{self.run}/channels/{check_plain(channel, 'channel')}/log/{leading}"

    @property
    def channels(self) -> str:
        """Prefix of all channels."""
        return f"{self.run}/channels/"

    def manifest(self, version: int) -> str:
        """The signed state of a version."""
        return f"{self.run}/versions/{version}/manifest"

    def payload(self, version: int, base: int, writer: str) -> str:
        """One way to reach `version` from `base`."""
        return f"{self.run}/versions/{version}/payloads/{base}-{writer}"

    def payloads(self, version: int) -> str:
        """Prefix of all ways to reach `version`."""
        return f"{self.run}/versions/{version}/payloads/"

    def shard(self, writer: str, version: int, base: int, digest: str) -> str:
        """An object of frames."""
        return f"{self.run}/shards/{writer}-{version}-{base}/{digest}"

    @property
    def shards(self) -> str:
        """Prefix of all shards."""
        return f"{self.run}/shards/"

    def digests(self, writer: str, version: int, digest: str) -> str:
        """Leaves and sums of a version."""
        return f"{self.run}/digests/{writer}-{version}/{digest}"

    def layout(self, digest: str) -> str:
        """A table of tensors."""
        return f"{self.run}/layouts/{digest}"

    def file(self, digest: str) -> str:
        """A small file, a table of files, or a safetensors header."""
        return f"{self.run}/files/{digest}"

    def pin(self, version: int) -> str:
        """An operator's wish to keep a version."""
        return f"{self.run}/pins/{version}"

    @property
    def versions(self) -> str:
        """Prefix of all manifests and payloads."""
        return f"{self.run}/versions/"

    @property
    def leaves(self) -> str:
        """Prefix of all digests."""
        return f"{self.run}/digests/"

    @property
    def pins(self) -> str:
        """Prefix of all pins."""
        return f"{self.run}/pins/"

    @property
    def leases(self) -> str:
        """Prefix of all leases."""
        return f"{self.run}/leases/"

    @property
    def boundary(self) -> str:
        """What is marked or condemned for collection."""
        return f"{self.run}/gc/boundary"

    def lease(self, holder: str) -> str:
        """An expiring claim on a version."""
        return f"{self.run}/leases/{check_plain(holder, 'holder')}"

    @property
    def probes(self) -> str:
        """Prefix of the short-lived objects that try out what a store can do."""
        return f"{self.run}/probes/"

    def parse_log(self, key: str) -> tuple[str, int, str] | None:
        """(channel, sequence, write id) of a move's key; None for any other key."""
        match = _LOG.fullmatch(key.removeprefix(self.prefix))
        return (match[1], int(match[2]), match[3]) if match else None

    def parse_payload(self, key: str) -> tuple[int, int, str] | None:
        """(version, base, writer) of a payload's key; None for any other key."""
        match = _PAYLOAD.fullmatch(key.removeprefix(self.prefix))
        return (int(match[1]), int(match[2]), match[3]) if match else None

    def parse_shard(self, key: str) -> tuple[str, int, int, str] | None:
        """(writer, version, base, digest) of a shard's key; None for any other key."""
        match = _SHARD.fullmatch(key.removeprefix(self.prefix))
        return (match[1], int(match[2]), int(match[3]), match[4]) if match else None

    def parse_digests(self, key: str) -> tuple[str, int, str] | None:
        """(writer, version, digest) of the key of leaves and sums; None for any other key."""
        match = _DIGESTS.fullmatch(key.removeprefix(self.prefix))
        return (match[1], int(match[2]), match[3]) if match else None

    def parse_manifest(self, key: str) -> int | None:
        """The version of a manifest's key; None for any other key."""
        match = _MANIFEST.fullmatch(key.removeprefix(self.prefix))
        return int(match[1]) if match else None

    def parse_pin(self, key: str) -> int | None:
        """The version of a pin's key; None for any other key."""
        match = _PIN.fullmatch(key.removeprefix(self.prefix))
        return int(match[1]) if match else None
