"""Lost replies, refusals and races, one by one. `test_simulation` mixes them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from weightsync.catalog import Claim
from weightsync.catalog.values import REPLACED
from weightsync.errors import AlreadyExists, Conflict, Corrupt, Denied, Fenced, OutcomeUnknown, Unavailable
from weightsync.store.memory import MemoryStore
from weightsync.store.memory_faults import Fault

HARMLESS = [Fault.UNAVAILABLE, Fault.LOST_APPLIED, Fault.LOST_DROPPED, Fault.CONFLICT_409, Fault.PRECONDITION_412]


def sequences(world, channel="latest") -> list[int]:
    catalog = world.catalog()
    return [move.sequence for move, _ in catalog.history(catalog.head(channel))]


@pytest.mark.parametrize("fault", HARMLESS)
@pytest.mark.parametrize("times", [1, 3])
class TestOneFault:
    """Whatever happens to the reply, a move is made exactly once."""

    def strike(self, world, fault, times, operation, key="head"):
        for _ in range(times):
            world.store.inject(fault, operation=operation, key=key)

    def test_first_claim(self, world, fault, times):
        self.strike(world, fault, times, "create")
        claim = world.catalog().claim("trainer")
        assert (claim.epoch, claim.head.move.version) == (1, 0)
        assert sequences(world) == [1]

    def test_later_claim(self, world, fault, times):
        world.publish(1)
        self.strike(world, fault, times, "swap")
        claim = world.catalog().claim("another")
        assert (claim.epoch, claim.head.move.version, claim.writer) == (2, 1, "2")
        assert sequences(world) == [3, 2, 1]

    def test_commit(self, world, fault, times):
        claim = world.publish(1)
        self.strike(world, fault, times, "swap")
        claim = world.commit(world.catalog(), claim)
        claim = world.commit(world.catalog(), claim)
        assert claim.head.move.version == 3
        assert sequences(world) == [4, 3, 2, 1]

    def test_move(self, world, fault, times):
        world.publish(2)
        self.strike(world, fault, times, "create", key="serving/head")
        assert world.catalog().move("serving", 2, expected_sequence=0, who="op", why="").move.sequence == 1
        self.strike(world, fault, times, "swap", key="serving/head")
        assert world.catalog().move("serving", 1, expected_sequence=1, who="op", why="").move.sequence == 2
        assert sequences(world, "serving") == [2, 1]

    def test_every_record(self, world, fault, times):
        """The same for what is written before the head."""
        world.publish(0)
        for key in ("log/2-", "versions/1/manifest", "versions/1/payloads", "shards/"):
            self.strike(world, fault, times, "create", key=key)
        assert world.commit(world.catalog(), world.catalog().claim("x")).head.move.version == 1


def test_a_torn_log_record_is_left_and_another_written(world):
    world.publish(1)
    world.store.inject(Fault.TORN, operation="create", key="log/3-")
    assert world.catalog().claim("another").head.move.sequence == 3
    assert sequences(world) == [3, 2, 1]


def test_a_number_whose_manifest_is_taken_is_void(world):
    claim = world.publish(1)
    catalog = world.catalog()
    first = catalog.plan_commit(claim, world.new_version(catalog, claim)[0])
    world.overwrite("versions/2/manifest", b"another publisher's")
    with pytest.raises(AlreadyExists, match="versions/2/manifest"):
        world.staged(catalog, claim, number=first.ref.version)
    assert catalog.next_number(claim) == 3


def test_a_fenced_publisher_stops(world):
    catalog = world.catalog()
    old = world.publish(1, catalog)
    new = world.catalog().claim("successor")
    with pytest.raises(Fenced, match=r"newer publisher \(epoch 2, ours was 1\): 'successor' moved channel 'latest'.*stop"):
        world.commit(catalog, old)
    assert world.commit(world.catalog(), new).head.move.version == 3  # 2 is void: its manifest stands
    with pytest.raises(Fenced):
        world.commit(catalog, old)


def test_a_claim_used_twice_conflicts_and_names_the_winner(world):
    claim = world.publish(1)
    world.commit(world.catalog(), claim)
    with pytest.raises(Conflict, match="'trainer' moved channel 'latest' to version 2 with sequence 3") as caught:
        world.commit(world.catalog(), claim)
    assert not isinstance(caught.value, AlreadyExists)


def test_won_although_others_have_moved_on_since(world):
    """The reply is lost, and before it can be read back a successor claims and commits."""
    catalog = world.catalog()
    claim = world.publish(1, catalog)
    plan = world.staged(catalog, claim)
    world.store.inject(Fault.LOST_APPLIED, operation="swap", key="head")
    with _interrupted(world, "swap", lambda: world.commit(world.catalog(), world.catalog().claim("successor"))):
        won = catalog.finish_commit(claim, plan)
    assert won.head.move == plan.move
    assert won.head.etag == REPLACED
    assert [ref.version for ref in world.catalog().committed()] == [1, 2, 3]
    assert catalog.head_if_changed("latest", won.head.etag).move.who == "successor"
    with pytest.raises(Fenced):
        world.commit(catalog, won)


def test_a_claim_that_was_overtaken_at_once_is_fenced(world):
    world.publish(1)
    world.store.inject(Fault.LOST_APPLIED, operation="swap", key="head")
    with _interrupted(world, "swap", lambda: world.catalog().claim("successor")), pytest.raises(Fenced, match="at once"):
        world.catalog().claim("first")


def test_a_claim_that_loses_the_race_claims_again(world):
    world.publish(1)
    with _interrupted(world, "create", lambda: world.catalog().claim("faster")):
        claim = world.catalog().claim("slower")
    assert claim.epoch == 3
    assert sequences(world) == [4, 3, 2, 1]


def test_a_renewal_in_between_is_no_loss(world):
    claim = world.commit(world.catalog(), world.publish(1), expires_ms=world_ms(world, 60))
    plan = world.staged(world.catalog(), claim)
    renewed = world.catalog().renew("latest", world_ms(world, 600))
    assert renewed.etag != claim.head.etag
    assert world.catalog().finish_commit(claim, plan).head.move.version == 3
    assert sequences(world) == [4, 3, 2, 1]


def test_what_could_not_be_settled_is_settled_by_the_same_call(world):
    catalog = world.catalog()
    claim = world.publish(1, catalog)
    plan = world.staged(catalog, claim)
    world.store.inject(Fault.LOST_APPLIED, operation="swap", key="head")
    for _ in range(9):
        world.store.inject(Fault.UNAVAILABLE, operation="get", key="head")
    with pytest.raises(OutcomeUnknown, match=r"version 2 with sequence 3.*repeating the same move"):
        catalog.finish_commit(claim, plan)
    assert catalog.finish_commit(claim, plan).head.move == plan.move
    assert catalog.finish_commit(claim, plan).head.move == plan.move
    assert sequences(world) == [3, 2, 1]


def test_a_write_that_certainly_failed_is_no_unknown(world):
    catalog = world.catalog()
    claim = world.publish(1, catalog)
    plan = world.staged(catalog, claim)
    for _ in range(9):
        world.store.inject(Fault.UNAVAILABLE, operation="swap", key="head")
    with pytest.raises(Unavailable) as caught:
        catalog.finish_commit(claim, plan)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert sequences(world) == [2, 1]


def test_refused_credentials_are_not_tried_again(world, monkeypatch):
    catalog = world.catalog()
    claim = world.publish(1, catalog)
    plan = world.staged(catalog, claim)
    calls = []

    def deny(*_):
        calls.append(1)
        raise Denied("no")

    monkeypatch.setattr(MemoryStore, "swap", deny)
    with pytest.raises(Denied):
        catalog.finish_commit(claim, plan)
    assert len(calls) == 1


def test_an_answer_from_the_past_is_not_believed(world):
    """Reading back shows the head before the one that the move was built on."""
    catalog = world.catalog()
    claim = world.publish(1, catalog)
    plan = world.staged(catalog, claim)
    world.store.inject(Fault.PRECONDITION_412, operation="swap", key="head")
    for _ in range(3):
        world.store.inject(Fault.STALE_READ, operation="get", key="latest/head")
    assert catalog.finish_commit(claim, plan).head.move.version == 2
    assert sequences(world) == [3, 2, 1]


def test_a_rewritten_history_is_refused(world):
    """A store restored from a copy, or another's hand: the head at our sequence is not the one we built on."""
    claim = world.publish(1)
    plan = world.staged(world.catalog(), claim)
    stolen = world.publish(0)  # sequence 3
    world.overwrite("channels/latest/head", stolen.head.data)
    later = Claim(claim.epoch, stolen.head, claim.who)
    other = world.staged(world.catalog(), later)
    forged = plan.envelope.data  # another move with sequence 3, following sequence 2
    world.overwrite("channels/latest/head", forged)
    with pytest.raises(Corrupt, match="holds another move 3 than before"):
        world.catalog().finish_commit(later, other)


def world_ms(world, seconds: int) -> int:
    return int((world.clock.now_s() + seconds) * 1000)


@contextmanager
def _interrupted(world, operation: str, meanwhile: Callable[[], object]) -> Iterator[None]:
    """Lets `meanwhile` happen right before the next create, or right after the next swap."""
    store = world.store
    original = getattr(store, operation)

    def struck(key, data, *rest):
        setattr(store, operation, original)
        if operation == "create":
            meanwhile()
            return original(key, data, *rest)
        try:
            return original(key, data, *rest)
        finally:
            meanwhile()

    setattr(store, operation, struck)
    yield
