"""Who may write what, seen through the catalog: roles, stripped and foreign signatures, rolling back without the key."""

import pytest

from tests.catalog.world import RUN, World
from weightsync.errors import Corrupt, Denied
from weightsync.format.envelope import Envelope, seal
from weightsync.format.moves import split_head
from weightsync.format.versions import Form, Payload
from weightsync.trust import Policy, Role, SigningKey

PUBLISHER, OPERATOR, FRESHNESS, STRANGER = (SigningKey(bytes([n]) * 32) for n in range(1, 5))
TRUSTED = {Role.PUBLISHER: [PUBLISHER.public], Role.OPERATOR: [OPERATOR.public], Role.FRESHNESS: [FRESHNESS.public]}
READER = Policy(TRUSTED)


def with_key(key: SigningKey) -> Policy:
    return Policy(TRUSTED, key)


@pytest.fixture
def signed() -> World:
    """Three versions, `serving` on 2."""
    world = World(policy=READER)
    world.publish(3, world.catalog(with_key(PUBLISHER)))
    world.catalog(with_key(OPERATOR)).move("serving", 2, expected_sequence=0, who="op", why="")
    return world


def test_the_run_names_the_trusted_keys(signed):
    assert signed.catalog().run().trusted == tuple(sorted(key.public.name for key in (PUBLISHER, OPERATOR, FRESHNESS)))


def test_whatever_was_signed_is_read(signed):
    catalog = signed.catalog()
    assert [ref.version for ref in catalog.committed()] == [1, 2, 3]
    assert catalog.head("serving").move.version == 2
    assert len(catalog.payloads(catalog.manifest_of(3))) == 1


@pytest.mark.parametrize("key", [OPERATOR, FRESHNESS, STRANGER, None], ids=["operator", "freshness", "stranger", "none"])
def test_only_a_publisher_publishes_and_rolls_back_latest(signed, key):
    catalog = signed.catalog(Policy(TRUSTED, key))
    before = signed.data("channels/latest/head")
    with pytest.raises(Denied, match=r"trusted publisher key.*--key"):
        catalog.claim("x")
    with pytest.raises(Denied, match="publisher"):
        catalog.move("latest", 1, expected_sequence=None, who="x", why="")
    claim = signed.catalog(with_key(PUBLISHER)).claim("trainer")
    with pytest.raises(Denied, match="publisher"):
        catalog.plan_commit(claim, signed.new_version(catalog, claim)[0])
    assert signed.data("channels/latest/head") != before


@pytest.mark.parametrize("key", [PUBLISHER, FRESHNESS, STRANGER, None], ids=["publisher", "freshness", "stranger", "none"])
def test_only_an_operator_moves_other_channels(signed, key):
    with pytest.raises(Denied, match="operator"):
        signed.catalog(Policy(TRUSTED, key)).move("serving", 1, expected_sequence=None, who="x", why="")


def test_only_the_freshness_key_renews(signed):
    publisher = signed.catalog(with_key(PUBLISHER))
    later = int(signed.clock.now_s() * 1000) + 1000
    signed.commit(publisher, publisher.claim("trainer"), expires_ms=later)
    for key in (PUBLISHER, OPERATOR, STRANGER):
        with pytest.raises(Denied, match="freshness"):
            signed.catalog(with_key(key)).renew("latest", later + 1000)
    assert signed.catalog(with_key(FRESHNESS)).renew("latest", later + 1000).renewal == 1
    assert signed.catalog().head().expires_ms == later + 1000


RECORDS = {
    "channels/latest/head": (PUBLISHER, lambda c: c.head()),
    "channels/serving/head": (OPERATOR, lambda c: c.head("serving")),
    "versions/3/manifest": (PUBLISHER, lambda c: c.manifest_of(3, _digest(c, 3))),
    "versions/3/payloads/2-1": (PUBLISHER, lambda c: c.payloads(c.manifest_of(3))),
    "run.json": (PUBLISHER, lambda c: c.run()),
    "log": (PUBLISHER, lambda c: c.committed()),
}
ROLES = {PUBLISHER: "publisher", OPERATOR: "operator"}


def _digest(catalog, version):
    return next(ref.manifest for ref in catalog.committed() if ref.version == version)


def _key(world, name):
    if name != "log":
        return name
    return next(stat.key for stat in world.store.list(f"{RUN}/channels/latest/log/2-")).removeprefix(f"{RUN}/")


@pytest.mark.parametrize("name", RECORDS)
def test_stripped_foreign_and_altered_signatures_are_refused(signed, name):
    key, (signer, read) = _key(signed, name), RECORDS[name]
    good = signed.data(key)
    envelope = Envelope.parse(good, key)
    (signature,) = envelope.signatures
    flipped = type(signature)(signature.key, signature.sig[:-1] + ("0" if signature.sig[-1] != "0" else "1"))
    renamed = type(signature)(STRANGER.public.name, signature.sig)
    claimed = type(signature)(signer.public.name, STRANGER.sign(envelope.digest).sig)
    other = OPERATOR if signer is PUBLISHER else PUBLISHER
    for signatures in (
        [],
        [flipped],
        [renamed],
        [claimed],
        [STRANGER.sign(envelope.digest)],
        [other.sign(envelope.digest)],
        [FRESHNESS.sign(envelope.digest)],
        [signer.sign("0" * 64)],
    ):
        signed.overwrite(key, seal(envelope.body, signatures).data)
        with pytest.raises(Corrupt, match=f"is not signed by a trusted {ROLES[signer]} key"):
            read(signed.catalog())
    for signatures in ([signer.sign(envelope.digest)], [STRANGER.sign(envelope.digest), signer.sign(envelope.digest)]):
        signed.overwrite(key, seal(envelope.body, signatures).data)
        read(signed.catalog())


@pytest.mark.parametrize("key", [PUBLISHER, OPERATOR, STRANGER, None], ids=["publisher", "operator", "stranger", "none"])
def test_a_renewal_by_another_key_is_refused(signed, key):
    from weightsync.format.moves import Renewal, join_head

    head = signed.catalog().head()
    body = Renewal(RUN, head.digest, 1, 9_999_999_999_999).to_body()
    envelope = seal(body, [key.sign(seal(body).digest)] if key else [])
    signed.overwrite("channels/latest/head", join_head(head.data, envelope.data))
    with pytest.raises(Corrupt, match=r"renewal.*freshness"):
        signed.catalog().head()


def test_a_renewal_of_another_move_is_refused(signed):
    publisher = signed.catalog(with_key(PUBLISHER))
    later = int(signed.clock.now_s() * 1000) + 1000
    claim = signed.commit(publisher, publisher.claim("trainer"), expires_ms=later)
    signed.catalog(with_key(FRESHNESS)).renew("latest", later + 1000)
    renewal = split_head(signed.data("channels/latest/head"))[1]
    after = signed.commit(publisher, publisher.claim("trainer"))
    signed.overwrite("channels/latest/head", after.head.data + b"\n" + renewal)
    with pytest.raises(Corrupt, match="belongs to another move"):
        signed.catalog().head()
    assert claim.head.move.version == 4


def test_an_unsigned_writer_cannot_add_a_payload(signed):
    record = signed.catalog().manifest_of(3)
    payload = Payload(RUN, Form.SNAPSHOT, "g1", record.ref, None, (), 0, 0)
    signed.overwrite("versions/3/payloads/0-g1", seal(payload.to_body()).data)
    assert [p.writer for p in signed.catalog().payloads(record)] == ["1"]
    signed.overwrite("versions/3/payloads/0-g1", with_key(PUBLISHER).seal(payload.to_body(), Role.PUBLISHER).data)
    assert [p.writer for p in signed.catalog().payloads(record)] == ["1", "g1"]


def test_an_old_signed_head_is_still_well_formed(signed):
    """Replaying one is the follower's to refuse, by its sequence: nothing in the record itself can tell."""
    catalog = signed.catalog(with_key(PUBLISHER))
    old = signed.data("channels/latest/head")
    signed.commit(catalog, catalog.claim("trainer"))
    signed.overwrite("channels/latest/head", old)
    assert signed.catalog().head().move.sequence == 4
