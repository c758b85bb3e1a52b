"""The messages carry what the records say: the same names, so that neither can change alone."""

import dataclasses

import pytest

from weightsync.format.moves import Move, MoveRef, Renewal
from weightsync.format.refs import Ref, VersionRef
from weightsync.format.versions import Manifest
from weightsync.v1 import version_pb2 as pb


@pytest.mark.parametrize(
    ("record", "message", "added"),
    [
        (Ref, pb.Ref, set()),
        (VersionRef, pb.VersionRef, set()),
        (Manifest, pb.Version, {"manifest"}),
        (MoveRef, pb.MoveRef, set()),
        (Move, pb.Move, set()),
        (Renewal, pb.Renewal, set()),
    ],
)
def test_messages_mirror_records(record, message, added):
    assert {field.name for field in message.DESCRIPTOR.fields} == {field.name for field in dataclasses.fields(record)} | added


def test_integers_up_to_2_53_survive():
    largest = 2**53 - 1
    assert pb.Move.FromString(pb.Move(sequence=largest).SerializeToString()).sequence == largest
