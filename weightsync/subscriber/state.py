"""What was accepted of a channel, kept over restarts: nothing older and no other history is believed again."""

import os
from dataclasses import dataclass
from pathlib import Path

from weightsync.catalog import Head
from weightsync.errors import Corrupt, WeightsyncError
from weightsync.format import canonical
from weightsync.format.envelope import Envelope, seal
from weightsync.format.fields import Fields
from weightsync.format.limits import FORMAT_VERSION, MAX_SEQUENCE_JUMP
from weightsync.format.names import check_plain
from weightsync.format.refs import HEX_DIGEST
from weightsync.replica.directory import PrivateDirectory
from weightsync.store.oserrors import named_errors

_MAX_BYTES = 4096


@dataclass(frozen=True)
class Accepted:
    """The newest move of a channel that was verified. `digest` is the move's."""

    sequence: int
    epoch: int
    digest: str

    @classmethod
    def of(cls, head: Head) -> "Accepted":
        """That of a verified head."""
        return cls(head.move.sequence, head.move.epoch, head.digest)


def check_order(accepted: Accepted | None, head: Head) -> None:
    """Raises `Corrupt` for a head that is older than what was accepted, contradicts it, or is impossibly far ahead. Pure.

    Whoever restores a store from a backup, or replays an old signed head, is refused here.
    """
    if accepted is None:
        return
    move = head.move
    where = f"channel {move.channel!r} of run {move.run!r}"
    remedy = "the store was rolled back or rewritten: find out why; to accept it, delete this subscriber's state"
    if move.sequence < accepted.sequence:
        raise Corrupt(f"{where} went back from sequence {accepted.sequence} to {move.sequence}", remedy=remedy)
    if move.sequence == accepted.sequence and head.digest != accepted.digest:
        raise Corrupt(f"{where} holds another move {move.sequence} than before", remedy=remedy)
    if move.epoch < accepted.epoch:
        raise Corrupt(f"{where} went back from epoch {accepted.epoch} to {move.epoch}", remedy=remedy)
    if move.sequence - accepted.sequence > MAX_SEQUENCE_JUMP:
        raise Corrupt(f"{where} jumped from sequence {accepted.sequence} to {move.sequence}", remedy=remedy)
    if move.previous is not None and move.previous.sequence == accepted.sequence and move.previous.digest != accepted.digest:
        raise Corrupt(f"{where} follows another move {accepted.sequence} than was accepted", remedy=remedy)


class AcceptedFile:
    """One run's channel, in a private directory. Raises `Corrupt` when its file is damaged."""

    def __init__(self, directory: Path, run: str, channel: str) -> None:
        self._directory = PrivateDirectory(directory)
        self._run = run
        self._channel = channel
        self._name = f"accepted-{check_plain(channel, 'channel')}"
        self._value = self._load()

    @property
    def value(self) -> Accepted | None:
        """What was accepted last; None before the first."""
        return self._value

    def accept(self, head: Head) -> None:
        """Checks `head` and keeps it, on disk before this returns. Raises `Corrupt`, `NoSpace`."""
        check_order(self._value, head)
        new = Accepted.of(head)
        if new == self._value:
            return
        self._directory.replace(self._name, self._to_bytes(new))
        self._sync()
        self._value = new

    def close(self) -> None:
        """Closes the directory."""
        self._directory.close()

    def _sync(self) -> None:
        with named_errors(f"directory {str(self._directory.path)!r}"):
            fd = os.open(self._directory.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _to_bytes(self, accepted: Accepted) -> bytes:
        body = {
            "channel": self._channel,
            "digest": accepted.digest,
            "epoch": accepted.epoch,
            "format": FORMAT_VERSION,
            "kind": "accepted",
            "run": self._run,
            "sequence": accepted.sequence,
        }
        return seal(canonical.to_bytes(body)).data

    def _load(self) -> Accepted | None:
        data = self._directory.read(self._name, _MAX_BYTES)
        if data is None:
            return None
        what = f"{str(self._directory.path / self._name)!r}"
        try:
            fields = Fields(Envelope.parse(data, what).value(what), what)
            fields.constant("kind", "accepted")
            fields.constant("format", FORMAT_VERSION)
            fields.constant("run", self._run)
            fields.constant("channel", self._channel)
            found = Accepted(fields.integer("sequence", least=1), fields.integer("epoch"), fields.hex("digest", HEX_DIGEST))
            fields.done()
        except WeightsyncError as error:
            raise Corrupt(error.message, remedy="delete it to trust the store's present head") from error
        return found
