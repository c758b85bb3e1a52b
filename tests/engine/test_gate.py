"""Steps, requests and pauses against each other, in threads and in event loops."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from weightsync.clock import SYSTEM
from weightsync.engine.api import Mode
from weightsync.engine.gate import Gate
from weightsync.errors import Conflict, Invalid, Unavailable

LONG_S = 60.0


@contextmanager
def in_thread(work) -> Iterator[list]:
    """Runs `work` beside the block; what it gave, or raised, is in the list after it."""
    found: list = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield found
    thread.join(LONG_S)
    assert not thread.is_alive()


def until_paused(gate: Gate) -> None:
    with gate.changed:
        assert gate.changed.wait_for(lambda: gate._pause is not None, LONG_S)


def one_step(gate: Gate) -> int:
    with gate.step() as version:
        return version


class TestAdmission:
    def test_a_step_says_its_version(self) -> None:
        gate = Gate(3)
        assert one_step(gate) == 3
        with gate.pause():
            gate.serve(4)
        assert one_step(gate) == 4

    @pytest.mark.parametrize(
        ("exact", "minimum", "fits"), [(None, 0, True), (2, 0, True), (None, 2, True), (1, 0, False), (None, 3, False)]
    )
    def test_which_versions_fit(self, exact: int | None, minimum: int, fits: bool) -> None:
        gate = Gate(2)
        if fits:
            with gate.request(exact=exact, minimum=minimum) as request:
                request.check()
                assert gate.in_flight == 1
        else:
            with pytest.raises(Unavailable, match="was asked for, 2 is served"), gate.request(exact=exact, minimum=minimum):
                pass
        assert gate.in_flight == 0

    def test_a_request_for_one_version_ends_with_it_and_others_go_on(self) -> None:
        gate = Gate(2)
        with gate.request(exact=2) as exact, gate.request(minimum=1) as newer:
            with gate.pause(Mode.KEEP):
                gate.serve(3)
            with pytest.raises(Unavailable):
                exact.check()
            newer.check()
            with gate.pause(Mode.KEEP):
                gate.serve(1)
            newer.check()

    def test_nothing_is_served_before_something_was_loaded(self) -> None:
        gate = Gate()
        with pytest.raises(Unavailable, match="nothing was loaded"), gate.request():
            pass
        with pytest.raises(Unavailable, match="nothing was loaded"):
            one_step(gate)
        gate.serve(1)
        assert one_step(gate) == 1

    def test_withdrawn_it_says_why_also_to_those_in_flight(self) -> None:
        gate = Gate(1)
        with gate.request() as request:
            gate.withdraw("proof failed")
            with pytest.raises(Unavailable, match="proof failed"):
                request.check()
            with pytest.raises(Unavailable, match="proof failed"):
                one_step(gate)
        gate.serve(2)
        with pytest.raises(Unavailable), gate.request():
            pass
        gate.admit()
        assert one_step(gate) == 2


class TestPause:
    def test_it_waits_for_the_step_and_holds_the_next(self) -> None:
        gate = Gate(1)

        def swap() -> None:
            with gate.pause(limit_s=LONG_S):
                gate.serve(2)

        step = gate.step()
        assert step.__enter__() == 1
        with in_thread(swap):
            until_paused(gate)
            with in_thread(lambda: one_step(gate)) as late:
                assert gate.version == 1
                step.__exit__(None, None, None)
        assert late == [2]

    def test_with_wait_those_in_flight_finish_and_new_ones_come_after(self) -> None:
        gate = Gate(1)

        def swap() -> None:
            with gate.pause(Mode.WAIT, LONG_S):
                gate.serve(2)

        def ask() -> int:
            with gate.request():
                return one_step(gate)

        early = gate.request()
        request = early.__enter__()
        with in_thread(swap):
            until_paused(gate)
            with in_thread(ask) as late:
                assert [one_step(gate) for _ in range(5)] == [1] * 5
                request.check()
                early.__exit__(None, None, None)
        assert late == [2]

    def test_with_abort_those_in_flight_end_and_may_ask_again(self) -> None:
        gate = Gate(1)
        with gate.request() as request:
            with gate.pause(Mode.ABORT):
                gate.serve(2)
            with pytest.raises(Unavailable) as found:
                request.check()
            assert "ask again" in found.value.remedy
        with gate.request() as request:
            request.check()

    @pytest.mark.parametrize("mode", list(Mode))
    def test_a_pause_that_cannot_be_had_in_time_changes_nothing(self, mode: Mode) -> None:
        gate = Gate(1)
        with gate.request(), gate.step(), pytest.raises(Unavailable, match="did not end"), gate.pause(mode, 0.01):
            pytest.fail("a step is inside")
        assert one_step(gate) == 1
        with gate.pause():
            pass

    def test_one_that_is_too_long_holds_nobody(self) -> None:
        gate = Gate(1)
        with gate.pause(limit_s=0.01) as pause:
            with in_thread(lambda: one_step(gate)) as step:
                pass
            assert isinstance(step[0], Unavailable)
            with pytest.raises(Unavailable, match="longer than its limit"), gate.request():
                pass
            with pytest.raises(Unavailable, match="did not do with its"):
                pause.check()
        assert one_step(gate) == 1

    def test_two_at_once(self) -> None:
        gate = Gate(1)
        with gate.pause():
            with pytest.raises(Conflict), gate.pause():
                pass
            gate.serve(2)
        assert one_step(gate) == 2

    def test_an_error_inside_ends_it(self) -> None:
        gate = Gate(1)
        with pytest.raises(ZeroDivisionError), gate.pause() as pause:
            raise ZeroDivisionError
        assert one_step(gate) == 1
        assert pause.seconds == pause.seconds > 0

    def test_a_limit_must_be_one(self) -> None:
        with pytest.raises(Invalid):
            Gate(1).pause(limit_s=0)


class TestAsyncio:
    def test_steps_of_a_loop_and_pauses_of_a_thread(self) -> None:
        gate, swaps, seen = Gate(1), 200, []

        def swap() -> None:
            for number in range(2, swaps + 2):
                while not seen or seen[-1] < number - 1:  # so that each version makes something
                    SYSTEM.sleep_s(0.0001)
                with gate.pause(list(Mode)[number % 3], LONG_S):
                    live[0] = number
                    gate.serve(number)

        live = [1]

        async def client() -> None:
            while live[0] <= swaps:
                try:
                    async with gate.request() as request:
                        for _ in range(3):
                            async with gate.step() as version:
                                assert live[0] == version
                                await asyncio.sleep(0)
                                assert live[0] == version
                            seen.append(version)
                            request.check()
                except Unavailable as error:
                    assert "ended for new weights" in error.message  # noqa: PT017 - nothing else may be said

        async def all_of_them() -> None:
            await asyncio.gather(*(client() for _ in range(4)))

        with in_thread(swap) as done:
            asyncio.run(asyncio.wait_for(all_of_them(), LONG_S))
        assert done == [None]
        assert set(seen) >= set(range(1, swaps + 1))
        assert not gate._sleepers

    def test_a_loop_may_pause_too_and_give_up_waiting(self) -> None:
        async def body() -> None:
            gate = Gate(1)
            async with gate.step():
                waiting = asyncio.create_task(_enter(gate.pause(limit_s=LONG_S)))
                await asyncio.sleep(0)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            async with gate.pause() as pause:
                gate.serve(2)
                pause.check()
            async with gate.step() as version:
                assert version == 2

        asyncio.run(body())


async def _enter(entry) -> None:
    async with entry:
        pass
