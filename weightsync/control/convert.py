"""Records to messages, and moves back: what a watcher gets can be held against the digest that came with it."""

from blake3 import blake3

from weightsync.catalog import Head, VersionRecord
from weightsync.format.moves import Move, MoveRef
from weightsync.format.refs import Ref, VersionRef
from weightsync.v1 import version_pb2 as pb


def to_ref(ref: Ref) -> pb.Ref:
    """An object."""
    return pb.Ref(digest=ref.digest, nbytes=ref.nbytes)


def to_version_ref(ref: VersionRef | None) -> pb.VersionRef | None:
    """A version by number and manifest."""
    return pb.VersionRef(version=ref.version, manifest=ref.manifest) if ref else None


def to_version(record: VersionRecord) -> pb.Version:
    """What a manifest says."""
    manifest = record.manifest
    return pb.Version(
        run=manifest.run,
        version=manifest.version,
        manifest=pb.Ref(digest=record.ref.manifest, nbytes=record.nbytes),
        parent=to_version_ref(manifest.parent),
        epoch=manifest.epoch,
        writer=manifest.writer,
        base=manifest.base,
        step=manifest.step,
        layout=to_ref(manifest.layout),
        root=manifest.root,
        digests=to_ref(manifest.digests),
        files=to_ref(manifest.files),
        checkpoint_bytes=manifest.checkpoint_bytes,
        payload_bytes=manifest.payload_bytes,
        changed_lanes=manifest.changed_lanes,
        created_ms=manifest.created_ms,
        note=manifest.note,
    )


def to_move(move: Move) -> pb.Move:
    """A move."""
    previous = move.previous
    return pb.Move(
        run=move.run,
        channel=move.channel,
        sequence=move.sequence,
        epoch=move.epoch,
        version=move.version,
        highest=move.highest,
        manifest=to_ref(move.manifest) if move.manifest else None,
        previous=pb.MoveRef(sequence=previous.sequence, write_id=previous.write_id, digest=previous.digest) if previous else None,
        write_id=move.write_id,
        who=move.who,
        why=move.why,
        created_ms=move.created_ms,
        expires_ms=move.expires_ms,
    )


def to_channel(head: Head) -> pb.Channel:
    """Where a channel points."""
    channel = pb.Channel(move=to_move(head.move), move_digest=head.digest)
    if head.renewal and head.expires_ms is not None:
        renewal = pb.Renewal(run=head.move.run, move=head.digest, renewal=head.renewal, expires_ms=head.expires_ms)
        channel.renewal.CopyFrom(renewal)
    return channel


def from_move(message: pb.Move) -> Move:
    """The record that a message carries; nothing is checked."""
    manifest, previous = message.manifest, message.previous
    return Move(
        run=message.run,
        channel=message.channel,
        sequence=message.sequence,
        epoch=message.epoch,
        version=message.version,
        highest=message.highest,
        manifest=Ref(manifest.digest, manifest.nbytes) if message.HasField("manifest") else None,
        previous=MoveRef(previous.sequence, previous.write_id, previous.digest) if message.HasField("previous") else None,
        write_id=message.write_id,
        who=message.who,
        why=message.why,
        created_ms=message.created_ms,
        expires_ms=message.expires_ms if message.HasField("expires_ms") else None,
    )


def is_whole(message: pb.Move, digest: str) -> bool:
    """Whether the message is the whole move that has this digest."""
    try:
        return blake3(from_move(message).to_body()).hexdigest() == digest
    except ValueError:  # text or numbers that no record can hold
        return False
