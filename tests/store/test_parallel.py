import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from weightsync.errors import Unavailable
from weightsync.store.s3 import parallel


def fail() -> int:
    raise Unavailable("the first")


def test_results_keep_their_order() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert parallel.run_all(pool, [lambda i=i: i for i in range(50)]) == list(range(50))
        assert parallel.run_all(pool, [lambda: 1]) == [1]


def test_nothing_starts_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    cancelled = threading.Event()

    def watching(futures: Any, **keywords: Any) -> Any:
        if not keywords:  # the second wait: for what runs already
            cancelled.set()
        return wait(futures, **keywords)

    monkeypatch.setattr(parallel, "wait", watching)
    calls = [fail, lambda: cancelled.wait(timeout=60), *[lambda i=i: started.append(i) for i in range(10)]]
    with ThreadPoolExecutor(1) as pool, pytest.raises(Unavailable, match="the first"):
        parallel.run_all(pool, calls)
    assert started == []


def test_what_runs_has_ended_when_the_failure_is_raised() -> None:
    running: list[int] = []

    def slow() -> None:
        running.append(1)
        sum(range(10**6))
        running.remove(1)

    with ThreadPoolExecutor(4) as pool:
        with pytest.raises(Unavailable):
            parallel.run_all(pool, [slow, slow, fail, slow, slow])
        assert running == []
