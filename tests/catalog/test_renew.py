import pytest

from weightsync.errors import Invalid, NotFound
from weightsync.store.memory_faults import Fault


@pytest.fixture
def now_ms(world) -> int:
    return int(world.clock.now_s() * 1000)


@pytest.fixture
def expiring(world, now_ms):
    return world.commit(world.catalog(), world.publish(1), expires_ms=now_ms + 1000)


def test_a_renewal_moves_the_expiry_and_not_the_sequence(world, expiring, now_ms):
    head = world.catalog().renew("latest", now_ms + 5000)
    assert head.move == expiring.head.move
    assert (head.expires_ms, head.renewal) == (now_ms + 5000, 1)
    assert head.etag != expiring.head.etag
    assert world.catalog().renew("latest", now_ms + 9000).renewal == 2
    assert world.catalog().renew("latest", now_ms + 8000).expires_ms == now_ms + 9000


def test_a_move_starts_without_a_renewal(world, expiring, now_ms):
    world.catalog().renew("latest", now_ms + 5000)
    claim = world.catalog().claim("another")
    assert (claim.head.renewal, claim.head.expires_ms) == (0, now_ms + 5000)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.LOST_APPLIED, Fault.LOST_DROPPED, Fault.CONFLICT_409, Fault.PRECONDITION_412])
def test_a_lost_reply_does_not_matter(world, expiring, now_ms, fault):
    world.store.inject(fault, operation="swap", key="head")
    head = world.catalog().renew("latest", now_ms + 5000)
    assert head.expires_ms == now_ms + 5000
    assert len(list(world.catalog().history(head))) == 3


def test_what_cannot_be_renewed(world, now_ms):
    with pytest.raises(NotFound, match="'serving'"):
        world.catalog().renew("serving", now_ms)
    world.publish(1)
    with pytest.raises(Invalid, match="never expires"):
        world.catalog().renew("latest", now_ms)
