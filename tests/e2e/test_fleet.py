"""Publisher, control plane and subscribers as processes over a real S3 server; `python -m benchmarks.fleet` is the same, longer."""

import os

import pytest

from benchmarks.fleet import Plan, run
from weightsync.testing.s3_server import seaweedfs


@pytest.mark.s3
@pytest.mark.slow
def test_all_converge_while_the_control_plane_dies_and_a_subscriber_stands_still(tmp_path):
    (tmp_path / "s3").mkdir()
    with seaweedfs(tmp_path / "s3") as server:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("WEIGHTSYNC_", "AWS_"))}
        environment |= {**server.environment, "PYTHONWARNINGS": "error"}
        # Every process ends with exit code 0, and every version that was delivered was compared, or this raises.
        result = run(tmp_path, server.url("models"), environment, Plan(versions=8, poll_s=0.5, pause_s=0.1, values=40_000))
    assert result.kills == 2
    assert {name: versions[-1] for name, versions in result.identical.items()} == {"watching": 8, "stopped": 8, "alone": 8}
    assert result.seen == {"watching": 8, "stopped": 8}
    assert set(result.ready.values()) == {200}
