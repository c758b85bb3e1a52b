import threading

import numpy as np
import pytest

from weightsync.errors import Conflict, Fenced, Invalid, Unavailable
from weightsync.publisher.live import LivePublisher
from weightsync.store.memory_faults import Fault

WAIT_S = 30


def tensors(value, size=5000):
    embed = np.full((size // 50, 50), value, "<f4")
    return {"embed": embed, "head": embed, "other": np.full(7, value + 0.5, "<f2")}


class Gate:
    """Holds the publisher before its swap until it is opened."""

    def __init__(self, publisher):
        self.reached, self._open = threading.Event(), threading.Event()
        honest = publisher._catalog.finish_commit

        def finish(claim, plan):
            self.reached.set()
            assert self._open.wait(WAIT_S)
            return honest(claim, plan)

        publisher._catalog.finish_commit = finish

    def open(self):
        self._open.set()


def restored(world, version):
    from weightsync.publisher.checkpoint import open_checkpoint

    home = world.home / f"live-{version}"
    home.mkdir()
    for name, data in world.restored(version).items():
        (home / name).write_bytes(data)
    source = open_checkpoint(home)
    found = {}
    buffer = memoryview(bytearray(1 << 20))
    for chunk in source.layout.chunks:
        name = source.layout.tensors[chunk.tensor].name
        found[name] = found.get(name, b"") + bytes(source.read(chunk, buffer))
    source.close()
    return found


def expected(value):
    return {name: array.tobytes() for name, array in tensors(value).items()}


def test_states_go_out_in_the_background_with_both_names_of_a_tie(world):
    with LivePublisher(world.publisher()) as live:
        for number in range(3):
            published = live.publish(number, tensors(number), files={"config.json": b"{}"}).result(WAIT_S)
            assert (published.version, published.step) == (number + 1, number)
    for number in range(3):
        assert restored(world, number + 1) == expected(number)
    assert world.restored(3)["config.json"] == b"{}"


def test_what_the_trainer_writes_after_the_call_is_not_published(world):
    publisher = world.publisher()
    gate = Gate(publisher)
    with LivePublisher(publisher) as live:
        state = tensors(1)
        pending = live.publish(1, state)
        for array in state.values():
            array[:] = 99
        gate.open()
        assert pending.result(WAIT_S).version == 1
    assert restored(world, 1) == expected(1)
    assert state["embed"][0, 0] == 99


def test_the_newest_state_takes_the_place_of_the_one_that_waits_and_loses_no_change(world):
    publisher = world.publisher()
    gate = Gate(publisher)
    with LivePublisher(publisher) as live:
        first = live.publish(1, tensors(1))
        assert gate.reached.wait(WAIT_S)
        waiting = [live.publish(n, tensors(n)) for n in (2, 3, 4)]
        assert not first.done
        assert [pending.superseded for pending in waiting] == [True, True, False]
        gate.open()
        assert first.result(WAIT_S).version == 1
        results = [pending.result(WAIT_S) for pending in waiting]
    assert {(result.version, result.step) for result in results} == {(2, 4)}
    assert world.versions() == [1, 2]
    assert restored(world, 2) == expected(4)


def test_at_most_two_states_are_held_beside_the_base(world):
    publisher = world.publisher()
    gate = Gate(publisher)
    with LivePublisher(publisher) as live:
        live.publish(0, tensors(0))
        assert gate.reached.wait(WAIT_S)
        buffers = set()
        for number in range(1, 9):
            live.publish(number, tensors(number))
            buffers.add(id(live._waiting.buffer))
        assert len(buffers) == 1
        gate.open()


def test_an_error_reaches_its_call_and_the_next_state_goes_out(world):
    with LivePublisher(world.publisher()) as live:
        live.publish(1, tensors(1)).result(WAIT_S)
        for _ in range(60):
            world.store.inject(Fault.UNAVAILABLE, operation="create", key="/digests/")
        with pytest.raises(Unavailable):
            live.publish(2, tensors(2)).result(WAIT_S)
        world.store._chooser.planned.clear()
        published = live.publish(3, tensors(3)).result(WAIT_S)
    assert restored(world, published.version) == expected(3)
    assert len(world.versions()) == 2


def failing(world):
    for _ in range(60):
        world.store.inject(Fault.UNAVAILABLE, operation="create", key="/digests/")


def test_a_loop_that_asks_for_no_result_is_told_when_its_last_state_did_not_get_out(world, caplog):
    failing(world)
    with pytest.raises(Unavailable), LivePublisher(world.publisher()) as live:
        live.publish(1, tensors(1))
    assert "step 1 was not published" in caplog.text


def test_an_error_that_was_told_or_made_up_for_is_not_raised_again(world, caplog):
    with LivePublisher(world.publisher()) as live:
        failing(world)
        lost = live.publish(1, tensors(1))
        lost._future.exception(WAIT_S)  # without asking for the result
        world.store._chooser.planned.clear()
        live.publish(2, tensors(2))
    assert "step 1 was not published" in caplog.text
    assert len(world.versions()) == 1


def test_the_error_of_the_loop_itself_comes_first(world):
    def loop():
        with LivePublisher(world.publisher()) as live:
            live.publish(1, tensors(1))
            raise KeyError("the loop")

    failing(world)
    with pytest.raises(KeyError, match="the loop"):
        loop()


def test_closing_sends_what_waits(world):
    publisher = world.publisher()
    gate = Gate(publisher)
    live = LivePublisher(publisher)
    live.publish(1, tensors(1))
    assert gate.reached.wait(WAIT_S)
    last = live.publish(2, tensors(2))
    gate.open()
    live.close()
    assert last.done
    assert restored(world, last.result().version) == expected(2)
    with pytest.raises(Invalid, match="closed"):
        live.publish(3, tensors(3))
    live.close()


def test_a_fenced_publisher_stops_and_says_so_to_every_call(world):
    publisher = world.publisher()
    with LivePublisher(publisher) as live:
        live.publish(1, tensors(1)).result(WAIT_S)
        world.publisher("newer").start()
        with pytest.raises(Fenced, match="newer"):
            live.publish(2, tensors(2)).result(WAIT_S)
        live._thread.join(WAIT_S)
        with pytest.raises(Fenced, match="newer"):
            live.publish(3, tensors(3))
    assert world.versions() == [1]


def test_a_state_that_cannot_be_published_is_refused_at_once_and_what_waits_stays(world):
    publisher = world.publisher()
    gate = Gate(publisher)
    with LivePublisher(publisher) as live:
        live.publish(1, tensors(1))
        assert gate.reached.wait(WAIT_S)
        waiting = live.publish(2, tensors(2))
        with pytest.raises(Invalid, match="'step'"):
            live.publish(3, {"step": 3})
        gate.open()
        assert waiting.result(WAIT_S).step == 2
        assert not waiting.superseded


def test_a_copy_that_fails_halfway_is_told_to_those_whose_place_it_took(world):
    publisher = world.publisher()
    gate = Gate(publisher)
    with LivePublisher(publisher) as live:
        live.publish(1, tensors(1))
        assert gate.reached.wait(WAIT_S)
        waiting = live.publish(2, tensors(2))
        with pytest.raises(Invalid):
            live.publish(3, tensors(3), files={"../x": b""})
        with pytest.raises(Invalid):
            waiting.result(WAIT_S)
        last = live.publish(4, tensors(4))
        gate.open()
        assert last.result(WAIT_S).step == 4


def test_a_changed_layout_between_live_states_is_a_snapshot(world):
    with LivePublisher(world.publisher()) as live:
        live.publish(1, tensors(1)).result(WAIT_S)
        published = live.publish(2, {**tensors(2), "more": np.ones(3, "<f4")}).result(WAIT_S)
    assert published.form.value == "snapshot"
    assert any("added" in note for note in published.notes)


def test_two_publishers_cannot_share_a_base(world):
    world.publisher("one")
    with pytest.raises(Conflict, match="in use by process"):
        world.publisher("one")


def test_another_models_state_is_refused(world):
    with LivePublisher(world.publisher()) as live:
        live.publish(1, tensors(1)).result(WAIT_S)
        with pytest.raises(Invalid, match="another model's"):
            live.publish(2, {f"other.{name}": values for name, values in tensors(2).items()}).result(WAIT_S)
        assert live.publish(3, tensors(3)).result(WAIT_S).version == 2
