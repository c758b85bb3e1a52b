"""What holds for all tests: nothing of the user's settings, caches or credentials is read or written."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Examples are slow when the machine is busy, and that is no defect: no deadline. CI draws the same examples every time.
settings.register_profile("weightsync", deadline=None, derandomize="CI" in os.environ, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("weightsync")

KEPT = {"WEIGHTSYNC_KERNEL"}  # lets a developer run the tests on one dispatch level


@pytest.fixture(scope="session", autouse=True)
def _only_our_own_settings(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith(("WEIGHTSYNC_", "AWS_")) and name not in KEPT:
                patch.delenv(name)
        for name in ("CACHE", "CONFIG", "DATA", "STATE"):
            patch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
        patch.setenv("WEIGHTSYNC_IMAGES", str(home / "images"))  # nothing may stay in shared memory
        yield
