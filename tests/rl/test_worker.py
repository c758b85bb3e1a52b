"""A worker against a real hub: what goes wrong in one task is told, costs that task alone, and leaves the worker at work."""

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from weightsync.errors import Unsupported
from weightsync.rl import worker as module
from weightsync.rl.api import Completion, Finish
from weightsync.rl.book import Book, Work
from weightsync.rl.checkpoint import Numbers
from weightsync.rl.environments import open_environment
from weightsync.rl.lag import Bound
from weightsync.rl.service import LoopClient, LoopServer
from weightsync.rl.worker import Who, Worker


class Ends:
    """A policy that ends every turn at once."""

    version, busy_s, tokens = 1, 0.0, 0

    async def complete(self, tokens, *, max_tokens, temperature=1.0, seed=None, min_version=0):
        del tokens, max_tokens, temperature, seed, min_version
        return Completion(np.array([0], np.int32), np.zeros(1, np.float32), np.ones(1, np.int64), Finish.STOP)


class Spoils(LoopClient):
    """Its first group contradicts itself when it goes over the wire."""

    spoilt = 0

    def submit(self, group):
        if not self.spoilt:
            self.spoilt += 1
            group = replace(group, episodes=group.episodes[::-1])
        return super().submit(group)


@contextmanager
def hub(kind=LoopClient):
    server = LoopServer(Book(Work("sort", 2, 4, Bound(1))))
    client = kind(server.start(), timeout_s=10)
    client.begin(Numbers(), 0, 1)
    try:
        yield client
    finally:
        client.close()
        server.stop()


def play(worker, client, queued):
    """Until so many groups are there; a minute at most."""
    over = threading.Event()
    timer = threading.Timer(60.0, over.set)
    timer.start()
    asyncio.run(worker.run(lambda: over.is_set() or client.status().queued >= queued))
    timer.cancel()
    assert not over.is_set(), "the groups never came"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch):
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.05)


def test_an_environment_that_cannot_be_opened_costs_its_task_and_no_more():
    opened = []

    def fails_twice(name):
        opened.append(name)
        if len(opened) <= 2:
            raise Unsupported("not here")
        return open_environment(name)

    with hub() as client:
        worker = Worker(Who("w", "eu", groups=1), client, Ends(), fails_twice)
        play(worker, client, 4)
        assert worker.refused == {"unsupported": 2}
        assert worker.submitted == 4
        assert client.status().leased <= 1
    assert len(opened) == 3, "one environment serves all tasks"


def test_a_group_that_the_hub_refuses_is_told_and_made_again():
    with hub(Spoils) as client:
        worker = Worker(Who("w", "eu", groups=1), client, Ends(), open_environment)
        play(worker, client, 4)
        assert worker.refused == {"corrupt": 1}
        assert worker.submitted == 4
