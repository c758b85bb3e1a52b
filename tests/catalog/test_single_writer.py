"""Stores without conditional writes."""

import logging

import pytest

from tests.catalog.world import RUN, World
from weightsync.errors import Conflict, OutcomeUnknown, Unsupported
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Fault


@pytest.fixture(params=["create_only", "none"])
def poor(request) -> World:
    return World(MemoryStore("poor", conditional=request.param))


def test_publishing_is_refused_with_the_reason(poor):
    with pytest.raises(Unsupported, match=f"probed: {poor.store.conditional}.*--single-writer"):
        poor.catalog(capability=None).claim("trainer")
    assert poor.catalog().head() is None
    with pytest.raises(Unsupported, match="--single-writer"):
        poor.catalog(capability=poor.store.conditional).claim("trainer")


def test_a_full_store_is_probed_once_and_left_clean():
    world = World()
    catalog = world.catalog(capability=None)
    claim = world.publish(2, catalog)
    probes = [operation for operation in world.store.log if "/probes/" in operation.key]
    assert probes
    assert not list(world.store.list(f"{RUN}/probes/"))
    world.commit(catalog, claim)
    assert len([operation for operation in world.store.log if "/probes/" in operation.key and operation.name != "list"]) == len(probes)


def test_readers_never_probe(poor):
    catalog = poor.catalog(capability=None)
    catalog.head()
    catalog.committed()
    assert {operation.name for operation in poor.store.log} == {"get"}


def test_a_single_writer_publishes_and_is_warned(poor, caplog):
    with caplog.at_level(logging.WARNING):
        catalog = poor.catalog(single_writer=True)
    assert "single-writer" in caplog.text
    claim = poor.publish(3, catalog)
    assert catalog.move("serving", 2, expected_sequence=0, who="op", why="").move.version == 2
    assert catalog.move("latest", 1, expected_sequence=None, who="op", why="").move.epoch == claim.epoch + 1
    assert [ref.version for ref in poor.catalog().committed()] == [1, 2, 3]


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_APPLIED, Fault.LOST_DROPPED])
def test_a_single_writers_lost_replies_are_settled(poor, fault):
    catalog = poor.catalog(single_writer=True)
    claim = poor.publish(1, catalog)
    poor.store.inject(fault, operation="put", key="head")
    assert poor.commit(catalog, claim).head.move.version == 2
    assert len(list(catalog.history(catalog.head()))) == 3


def test_a_second_writer_is_noticed_when_it_shows(poor):
    catalog = poor.catalog(single_writer=True)
    claim = poor.publish(1, catalog)
    poor.commit(catalog, claim)
    with pytest.raises(Conflict, match="sequence 3"):
        poor.commit(catalog, claim)


def test_a_head_that_does_not_hold_what_was_written_is_not_taken_for_success(poor, monkeypatch):
    catalog = poor.catalog(single_writer=True)
    claim = poor.publish(1, catalog)
    monkeypatch.setattr(poor.store, "put", lambda *_: "ignored")
    with pytest.raises(OutcomeUnknown):
        poor.commit(catalog, claim)
