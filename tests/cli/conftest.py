"""One small store that most tests share and only read."""

import pytest

from tests.cli.tools import Cli, Shared, moved, save, weights


@pytest.fixture(scope="session")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def shared(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    base = tmp_path_factory.mktemp("shared")
    states = [weights(0)]
    states += [moved(states[0], 1)]
    states += [moved(states[1], 2)]
    states += [states[2]]
    checkpoints = {number: save(base / f"step-{10 * number}", state) for number, state in enumerate(states, 1)}
    store = Shared((base / "store").as_uri(), base / "store", checkpoints)
    for number, path in checkpoints.items():
        assert cli("publish", path, *store.at).out == f"{number}\n"
    cli("promote", 2, "--channel", "serving", *store.at, "--why", "a test")
    return store
