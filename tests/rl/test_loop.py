"""The loop's service over real sockets, and a whole run as processes that are killed on the way."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.rl.test_book import group_of
from weightsync.clock import SYSTEM
from weightsync.errors import Corrupt, Invalid, Unavailable
from weightsync.failpoints import VARIABLE
from weightsync.rl.book import Book, Work
from weightsync.rl.checkpoint import Numbers
from weightsync.rl.lag import Bound
from weightsync.rl.messages import group_from, group_to, ranges_from
from weightsync.rl.records import Grade, Outcome
from weightsync.rl.replay import load
from weightsync.rl.service import LoopClient, LoopServer
from weightsync.rl.settings import LoopSettings, WorkerPlace, read_settings, settings_of, to_toml
from weightsync.rl_v1 import loop_pb2 as pb


@pytest.fixture
def hub():
    server = LoopServer(Book(Work("sort", 2, 2, Bound(1))))
    client = LoopClient(server.start(), timeout_s=10)
    yield client
    client.close()
    server.stop()


def test_a_step_over_the_wire(hub):
    with pytest.raises(Unavailable, match="has not begun"):
        hub.lease("w", "eu", 1, working_on=(), metrics={}, wants=True)
    hub.begin(Numbers(), 0, 1)
    made = []
    for _ in range(2):
        task, give_up, why = hub.lease("w", "eu", 1, working_on=[g.task.number for g in made], metrics={"idle": 0.5}, wants=True)
        assert task is not None, why
        assert not give_up
        made.append(group_of(task, 1))
    assert [hub.submit(group) for group in made] == [True, True]
    assert not hub.submit(made[0])  # sent again after a lost reply
    taken = hub.take(1)
    assert [group.task.number for group in taken] == [0, 1]
    assert [group.task.number for group in hub.take(1)] == [0, 1]  # asked again after a lost reply
    assert np.array_equal(taken[0].episodes[1].segments[0].tokens, made[0].episodes[1].segments[0].tokens)
    hub.confirm(Numbers([(0, 2)]), 1, 2, {"reward": 0.5})
    found = hub.status()
    assert (found.step, found.version, found.consumed, found.queued, found.duplicates) == (1, 2, 2, 0, 1)
    assert found.workers[0].metrics["idle"] == found.metrics["reward"] == 0.5


def test_what_contradicts_itself_is_refused():
    group = group_of(Work("sort", 2, 2, Bound(1)) and Book(Work("sort", 2))._task(0), 3)
    assert group_from(group_to(group)).oldest_version == 3
    breaks = [
        lambda m: setattr(m.episodes[0].segments[0], "made", b"\1"),
        lambda m: setattr(m.episodes[0].segments[0], "tokens", b"abc"),
        lambda m: setattr(m.episodes[0].segments[0], "versions", bytes(24)),
        lambda m: setattr(m.episodes[0].segments[0], "logprobs", np.full(3, np.nan, "<f4").tobytes()),
        lambda m: m.episodes[0].segments[0].expert_shape.extend([1, 2]),
        lambda m: setattr(m.episodes[0], "outcome", "fine"),
        lambda m: setattr(m.episodes[0], "outcome", "infra_error"),
        lambda m: setattr(m.episodes[1], "sample", 0),
    ]
    for one in breaks:
        message = group_to(group)
        one(message)
        with pytest.raises(Corrupt):
            group_from(message)
    for ranges in ([(0, 0)], [(3, 2)], [(0, 3), (2, 4)], [(5, 6), (0, 1)]):
        with pytest.raises(Corrupt):
            ranges_from([pb.Range(first=a, stop=b) for a, b in ranges])
    lost = replace(group.episodes[0], grade=Grade(Outcome.INFRA_ERROR, 0.0, why="a sandbox died"))
    assert group_from(group_to(replace(group, episodes=(lost, group.episodes[1])))).episodes[0].grade.outcome is Outcome.INFRA_ERROR


def test_settings_are_read_strictly(tmp_path):
    wanted = LoopSettings(steps=3, lag_s=9.0, workers=(WorkerPlace("eu", 2),))
    (tmp_path / "run.toml").write_text(to_toml(wanted))
    assert read_settings(tmp_path / "run.toml") == wanted
    assert read_settings(None) == LoopSettings()
    (tmp_path / "odd.toml").write_text(to_toml(replace(wanted, environment='gym:"a\\b"')))
    assert read_settings(tmp_path / "odd.toml").environment == 'gym:"a\\b"'
    wrong = [{"stepz": 3}, {"steps": "3"}, {"steps": 0}, {"samples": 1}, {"mode": "quick"}, {"workers": []}, {"workers": [{"place": "eu"}]}]
    wrong += [{"learning_rate": 0.0}, {"learning_rate": float("nan")}, {"environment_s": -1.0}, {"lease_s": float("inf")}]
    wrong += [{"workers": [{"region": "eu"}, {"region": "eu"}]}, {"workers": [{"count": 0}]}, {"workers": [{"region": "../eu"}]}]
    for table in [*wrong, {"lag_versions": -1}, {"lease_s": 0.0}, {"records": 1}]:
        with pytest.raises(Invalid):
            settings_of(table, "test")


@pytest.mark.slow
@pytest.mark.parametrize(("point", "starts"), [("trainer.consumed", 3), ("trainer.saved", 2)])
def test_a_step_that_counts_has_its_record_and_is_told_wherever_the_trainer_dies(tmp_path, point, starts):
    from weightsync.rl.run import TRAINER, Loop

    small = LoopSettings(steps=3, prompts=2, samples=2, imitate=64, lease_s=3.0, workers=(WorkerPlace("east"),))
    with Loop(small, (tmp_path / "store").as_uri(), "sort", tmp_path / "home", environment={VARIABLE: f"{point}=kill@2"}) as loop:
        while loop.tend():
            SYSTEM.sleep_s(0.05)
        assert loop.well, loop.last_words()
        assert loop.processes.starts(TRAINER) == starts  # each dies at its second step
        assert [row["step"] for row in loop.steps()] == [1, 2, 3]
        tasks = [number for row in loop.steps() for number in row["tasks"]]
        assert len(tasks) == len(set(tasks)) == 6  # which ones hangs on who was ready when
    records = sorted((tmp_path / "home" / "records").iterdir())
    assert [load(path)[0].step for path in records] == [1, 2, 3]


@pytest.mark.slow
def test_a_run_whose_parts_are_killed(tmp_path):
    from weightsync.rl.run import HUB, TRAINER, Loop

    small = LoopSettings(steps=10, prompts=4, samples=4, imitate=64, lease_s=3.0, keep_checkpoints=50)
    killed = 0
    with Loop(small, (tmp_path / "store").as_uri(), "sort", tmp_path / "home") as loop:
        plan = {2: TRAINER, 4: "east-1", 5: HUB, 7: TRAINER}
        while loop.tend():
            done = len(loop.steps())
            for at in [at for at in plan if at <= done]:
                killed += loop.processes.kill(plan.pop(at))
            subprocess.run([sys.executable, "-c", ""], check=False)  # a moment
        assert loop.well, loop.last_words()
        found = loop.summary()
        tasks = [number for row in loop.steps() for number in row["tasks"]]
    assert killed == 4
    assert found["steps"] == 10
    assert found["lag_max_versions"] <= 1
    assert found["swaps_proven"] == found["swaps"] > 0
    state = json.loads((tmp_path / "home" / "checkpoints" / "step-00000010" / "state.json").read_text())
    assert sum(stop - first for first, stop in state["consumed"]) == 40  # each once; which ones hangs on who was ready when
    assert len(tasks) == len(set(tasks)) == 40
