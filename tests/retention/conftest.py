from pathlib import Path

import pytest

from tests.retention.tools import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
