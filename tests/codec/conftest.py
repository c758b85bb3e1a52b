"""Every implementation that this build and this processor have."""

import importlib

import pytest

from weightsync.codec.dispatch import LEVELS
from weightsync.codec.reference import transforms as reference
from weightsync.errors import Unsupported


@pytest.fixture(params=LEVELS)
def kernel(request):
    """The compiled kernel at one level; the level of before is restored."""
    try:
        module = importlib.import_module("weightsync.codec.kernel")
    except ImportError:
        pytest.skip("the kernel is not built")
    before = module.level()
    try:
        module.use_level(request.param)
    except Unsupported:
        pytest.skip(f"this processor lacks {request.param}")
    yield module
    module.use_level(before)


@pytest.fixture(params=["reference", *LEVELS])
def transforms(request, monkeypatch):
    """Each implementation in turn, behind the public API too."""
    from weightsync.codec import api

    chosen = reference if request.param == "reference" else _level(request)
    monkeypatch.setattr(api, "transforms", lambda: chosen)
    return chosen


def _level(request):
    try:
        module = importlib.import_module("weightsync.codec.kernel")
        before = module.level()
        module.use_level(request.param)
    except (ImportError, Unsupported) as error:
        pytest.skip(str(error))
    request.addfinalizer(lambda: module.use_level(before))
    return module
