"""Who computes: the environment's choice, and what happens without a kernel."""

import os
import subprocess
import sys

import pytest

from weightsync.codec import dispatch
from weightsync.codec.reference import transforms as reference
from weightsync.errors import Invalid, Unsupported


@pytest.fixture
def choose(monkeypatch):
    """Chooses anew under a value of the variable."""

    def chosen(value):
        monkeypatch.setenv("WEIGHTSYNC_KERNEL", value)
        dispatch.transforms.cache_clear()
        return dispatch.transforms()

    yield chosen
    monkeypatch.undo()
    dispatch.transforms.cache_clear()


@pytest.fixture
def no_kernel(monkeypatch):
    monkeypatch.setitem(sys.modules, "weightsync.codec.kernel", None)


def test_reference(choose):
    assert choose("reference") is reference


def test_unknown_choice(choose):
    with pytest.raises(Invalid, match="sse2"):
        choose("sse2")


def test_without_a_kernel_the_reference_serves_and_says_so(choose, no_kernel):
    with pytest.warns(RuntimeWarning, match="C\\+\\+ compiler"):
        assert choose("auto") is reference


def test_a_level_that_is_asked_for_is_not_replaced(choose, no_kernel):
    with pytest.raises(Unsupported):
        choose("avx2")


def test_each_level_by_environment(kernel):
    level = kernel.level()
    script = "from weightsync import codec; print(codec.dispatch_level())"
    environment = {**os.environ, "WEIGHTSYNC_KERNEL": level}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == level
