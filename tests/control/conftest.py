import pytest

from tests.control.plane import Plane


@pytest.fixture
def plane():
    with Plane() as plane:
        yield plane
