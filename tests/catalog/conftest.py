import pytest

from tests.catalog.world import World


@pytest.fixture
def world() -> World:
    return World()
