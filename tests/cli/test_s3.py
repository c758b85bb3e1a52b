"""The same commands over a real S3 server."""

import pytest

from tests.cli.tools import contents, moved, save, weights
from weightsync.testing.s3_server import seaweedfs


@pytest.mark.s3
def test_two_versions_over_s3(cli, tmp_path):
    first = weights(11, 4000)
    one, two = save(tmp_path / "step-1", first), save(tmp_path / "step-2", moved(first, 12))
    (tmp_path / "server").mkdir()
    with seaweedfs(tmp_path / "server") as server:
        env = {**server.environment, "AWS_SESSION_TOKEN": "", "WEIGHTSYNC_STORE": server.url("models"), "WEIGHTSYNC_RUN": "tuning"}
        findings: dict[str, dict[str, str]] = {}
        while findings.get("store", {}).get("level") != "ok":  # the server answers before it has made its bucket
            findings = {one["name"]: one for one in cli("doctor", "--json", env=env, code=None).json["findings"]}
        assert findings["writes"]["detail"].startswith("full")
        assert findings["run"]["level"] == "wrong"  # nothing was published yet
        assert cli("publish", one, env=env).out == "1\n"
        assert cli("publish", two, "--json", env=env).json["form"] == "delta"
        assert cli("subscribe", "--out", tmp_path / "out", "--once", "--json", env=env).json["version"] == 2
        assert contents(tmp_path / "out" / "current") == contents(two)
        cli("restore", "--version", 1, "--out", tmp_path / "back", env=env)
        assert contents(tmp_path / "back") == contents(one)
        assert cli("verify", "--json", env=env).json["ok"]
        assert cli("doctor", "--json", env=env).json["ok"]
