"""Two processes claim and commit to one run in a directory: one chain, whatever the order."""

import subprocess
import sys

from tests.catalog import validators
from tests.catalog.actors import Witness
from weightsync.clock import SYSTEM, jitter
from weightsync.errors import NotFound
from weightsync.store.file import FileStore

COMMITS = 20


def main(root: str, who: str) -> None:
    """Commits 20 versions, claiming again whenever the other process has taken over; prints what was acknowledged."""
    from tests.catalog.world import World
    from weightsync.catalog import Catalog
    from weightsync.errors import AlreadyExists, Fenced
    from weightsync.testing.clock import ManualClock

    store = FileStore(root)
    world = World(store, clock=ManualClock())
    catalog = Catalog(store, "run", capability="full")
    done, claim = 0, None
    while done < COMMITS:
        try:
            claim = claim or catalog.claim(who)
            claim = world.commit(catalog, claim)
        except AlreadyExists:
            continue
        except Fenced:
            claim = None
            SYSTEM.sleep_s(jitter(0.05))  # two that take over from each other at once would never get to commit
            continue
        done += 1
        sys.stdout.write(f"{claim.head.move.version} {claim.head.move.manifest.digest} {claim.epoch}\n")


def test_two_processes_make_one_chain(tmp_path):
    command = "import sys; from tests.catalog.test_race import main; main(*sys.argv[1:])"
    racers = [subprocess.Popen([sys.executable, "-c", command, str(tmp_path), who], stdout=subprocess.PIPE) for who in ("a", "b")]
    outputs = [racer.communicate(timeout=100)[0].decode().splitlines() for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]

    seen = Witness()
    for line in (line.split() for output in outputs for line in output):
        seen.acknowledged.append((int(line[0]), line[1]))
    state = validators.State(_get(FileStore(tmp_path)), "run/")
    moves = [envelope["body"] for envelope in state.history("latest")]
    validators.check_history(moves, "latest")
    validators.check_epochs(moves, seen)
    committed = {move["version"]: move["manifest"]["digest"] for move in moves if move["version"]}
    assert len(seen.acknowledged) == len(committed) == 2 * COMMITS
    assert all(committed[version] == digest for version, digest in seen.acknowledged)
    assert {move["who"] for move in moves} == {"a", "b"}


def _get(store):
    def get(key):
        try:
            return store.get(key, max_bytes=1 << 20).data
        except NotFound:
            return None

    return get
