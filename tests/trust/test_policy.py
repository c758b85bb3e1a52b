"""Who may sign what, and that secrets stay secret."""

import json
import logging
import pickle  # noqa: TID251  the test shows that keys cannot be pickled
import traceback

import pytest

from weightsync.errors import Corrupt, Denied, Invalid, WeightsyncError
from weightsync.format.envelope import Envelope, Signature, body_digest, seal, signed_bytes
from weightsync.trust import UNSIGNED, Policy, PublicKey, Role, SigningKey, load_policy
from weightsync.trust.policy import role_of_channel

BODY = b'{"a":1}'
SEEDS = {role: bytes([number]) * 32 for number, role in enumerate([*Role, None], 1)}
KEYS = {role: SigningKey(seed) for role, seed in SEEDS.items()}
TRUSTED = {role: [KEYS[role].public] for role in Role}
STRANGER = KEYS[None]


def sealed_by(*keys: SigningKey, body: bytes = BODY) -> Envelope:
    return Envelope.parse(seal(body, [key.sign(body_digest(body)) for key in keys]).data, "x")


class TestRoles:
    @pytest.mark.parametrize("needed", Role)
    @pytest.mark.parametrize("held", [*Role, None])
    def test_the_matrix(self, needed, held):
        """A key of one role signs for that role alone; one that nobody trusts, for none."""
        policy = Policy(TRUSTED, KEYS[held])
        if held is needed:
            assert Policy(TRUSTED).check(policy.seal(BODY, needed), needed, "x").body == BODY
        else:
            with pytest.raises(Denied, match=f"trusted {needed.value} key.*--key"):
                policy.seal(BODY, needed)
            with pytest.raises(Corrupt, match=f"x is not signed by a trusted {needed.value} key"):
                policy.check(sealed_by(KEYS[held]), needed, "x")

    @pytest.mark.parametrize("needed", Role)
    def test_without_a_key_nothing_is_signed(self, needed):
        with pytest.raises(Denied, match="--key"):
            Policy(TRUSTED).seal(BODY, needed)

    @pytest.mark.parametrize("needed", Role)
    def test_a_role_without_keys_cannot_sign_at_all(self, needed):
        others = {role: keys for role, keys in TRUSTED.items() if role is not needed}
        for trusted in (others, {**others, needed: []}):
            policy = Policy(trusted, KEYS[needed])
            with pytest.raises(Denied):
                policy.seal(BODY, needed)
            with pytest.raises(Corrupt):
                policy.check(sealed_by(KEYS[needed]), needed, "x")

    def test_one_key_may_hold_several_roles(self):
        policy = Policy({Role.PUBLISHER: [STRANGER.public], Role.OPERATOR: [STRANGER.public]}, STRANGER)
        policy.check(policy.seal(BODY, Role.PUBLISHER), Role.OPERATOR, "x")
        with pytest.raises(Denied):
            policy.seal(BODY, Role.FRESHNESS)

    def test_one_good_signature_among_others_is_enough(self):
        policy = Policy(TRUSTED)
        policy.check(sealed_by(STRANGER, KEYS[Role.OPERATOR], KEYS[Role.PUBLISHER]), Role.PUBLISHER, "x")
        policy.check(sealed_by(KEYS[Role.PUBLISHER], STRANGER), Role.PUBLISHER, "x")
        with pytest.raises(Corrupt):
            policy.check(sealed_by(*[STRANGER] * 16), Role.PUBLISHER, "x")

    def test_after_a_rotation_the_old_key_is_refused(self):
        new = SigningKey(b"\x77" * 32)
        old = sealed_by(KEYS[Role.PUBLISHER])
        both = Policy({Role.PUBLISHER: [KEYS[Role.PUBLISHER].public, new.public]})
        both.check(old, Role.PUBLISHER, "x")
        both.check(sealed_by(new), Role.PUBLISHER, "x")
        with pytest.raises(Corrupt):
            Policy({Role.PUBLISHER: [new.public]}).check(old, Role.PUBLISHER, "x")

    @pytest.mark.parametrize(("channel", "role"), [("latest", Role.PUBLISHER), ("serving", Role.OPERATOR), ("Latest", Role.OPERATOR)])
    def test_who_moves_a_channel(self, channel, role):
        assert role_of_channel(channel) is role


class TestSignatures:
    @pytest.mark.parametrize(
        "spoil",
        [
            lambda s: [],
            lambda s: [Signature(STRANGER.public.name, s.sig)],
            lambda s: [Signature(s.key, STRANGER.sign(body_digest(BODY)).sig)],
            lambda s: [Signature(s.key, "0" * 128)],
            lambda s: [Signature(s.key, s.sig[64:] + s.sig[:64])],
            lambda s: [KEYS[Role.PUBLISHER].sign(body_digest(b"{}"))],
            lambda s: [Signature(s.key, KEYS[Role.PUBLISHER]._key.sign(bytes.fromhex(body_digest(BODY))).hex())],
            lambda s: [Signature(s.key, KEYS[Role.PUBLISHER]._key.sign(BODY).hex())],
        ],
        ids=["stripped", "renamed", "a stranger's", "zero", "turned round", "another record's", "without the domain", "over the body"],
    )
    def test_other_signatures_are_refused(self, spoil):
        good = KEYS[Role.PUBLISHER].sign(body_digest(BODY))
        with pytest.raises(Corrupt, match="the head is not signed"):
            Policy(TRUSTED).check(Envelope.parse(seal(BODY, spoil(good)).data, "x"), Role.PUBLISHER, "the head")

    def test_every_bit_of_a_signature_counts(self):
        good = KEYS[Role.PUBLISHER].sign(body_digest(BODY))
        policy = Policy(TRUSTED)
        for digit in range(len(good.sig)):
            flipped = good.sig[:digit] + f"{int(good.sig[digit], 16) ^ 1:x}" + good.sig[digit + 1 :]
            with pytest.raises(Corrupt):
                policy.check(seal(BODY, [Signature(good.key, flipped)]), Role.PUBLISHER, "x")

    def test_another_body_under_the_same_signature_is_refused(self):
        signature = KEYS[Role.PUBLISHER].sign(body_digest(BODY))
        with pytest.raises(Corrupt):
            Policy(TRUSTED).check(seal(b'{"a":2}', [signature]), Role.PUBLISHER, "x")

    def test_a_key_is_named_by_its_digest_and_signs_in_the_open_format(self):
        """Anybody with an Ed25519 library can check: 64 bytes over the domain and the record's digest."""
        from blake3 import blake3
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = KEYS[Role.PUBLISHER]
        signature = key.sign(body_digest(BODY))
        assert signature.key == blake3(key.public.raw).hexdigest()[:32]
        public = Ed25519PrivateKey.from_private_bytes(SEEDS[Role.PUBLISHER]).public_key()
        public.verify(bytes.fromhex(signature.sig), signed_bytes(body_digest(BODY)))


class TestUnsigned:
    def test_everything_is_taken_and_nothing_signed(self):
        assert not UNSIGNED.signed
        assert UNSIGNED.seal(BODY, Role.PUBLISHER).signatures == ()
        for envelope in (seal(BODY), sealed_by(STRANGER)):
            assert UNSIGNED.check(envelope, Role.OPERATOR, "x") is envelope
        assert UNSIGNED.key_names == ()

    def test_a_key_without_a_list_of_trusted_ones_signs_all_the_same(self):
        policy = Policy(None, STRANGER)
        assert [s.key for s in policy.seal(BODY, Role.OPERATOR).signatures] == [STRANGER.public.name]
        assert policy.check(seal(BODY), Role.OPERATOR, "x").body == BODY

    def test_the_digest_is_there_in_any_mode(self):
        assert Envelope.parse(UNSIGNED.seal(BODY, Role.PUBLISHER).data, "x").digest == body_digest(BODY)


class TestFiles:
    def write(self, tmp_path, text, name="trusted.toml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    def test_roles_are_read(self, tmp_path):
        text = "".join(f'{role.value} = ["{KEYS[role].public.raw.hex()}"]\n' for role in Role)
        key = self.write(tmp_path, SEEDS[Role.OPERATOR].hex() + "\n", "key")
        policy = load_policy(self.write(tmp_path, text), key)
        assert policy.signed
        assert policy.key_names == tuple(sorted(KEYS[role].public.name for role in Role))
        policy.check(policy.seal(BODY, Role.OPERATOR), Role.OPERATOR, "x")
        with pytest.raises(Denied):
            policy.seal(BODY, Role.PUBLISHER)

    def test_nothing_given_is_unsigned(self):
        assert not load_policy(None, None).signed

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "publisher = []",
            'editor = ["' + "a" * 64 + '"]',
            'publisher = "' + "a" * 64 + '"',
            'publisher = ["abc"]',
            "publisher = [1]",
            'publisher = ["' + "g" * 64 + '"]',
            "publisher =",
            '[publisher]\nx = "y"',
        ],
    )
    def test_a_file_that_would_trust_nobody_or_anybody_is_refused(self, tmp_path, text):
        with pytest.raises(Invalid):
            load_policy(self.write(tmp_path, text), None)

    def test_files_that_cannot_be_read_are_named(self, tmp_path):
        for trusted, key in ((tmp_path / "none", None), (None, tmp_path / "none"), (tmp_path, None)):
            with pytest.raises(Invalid, match=str(trusted or key)):
                load_policy(trusted, key)


class TestSecrets:
    CANARY = "5ec2e7" * 10 + "cafe"
    KEY = SigningKey.from_hex(CANARY)

    def leaks(self, text: str) -> bool:
        return any(part in text.lower() for part in (self.CANARY, self.CANARY[:16], str(bytes.fromhex(self.CANARY))[2:20].lower()))

    def test_no_text_of_a_key_or_policy_shows_it(self):
        policy = Policy(TRUSTED, self.KEY)
        for thing in (self.KEY, policy, policy.__dict__, [self.KEY]):
            assert not self.leaks(repr(thing) + str(thing) + f"{thing}")
        assert not self.leaks(json.dumps({"key": self.KEY.public.name}))

    def test_a_key_cannot_be_sent_to_another_process(self):
        with pytest.raises(TypeError):
            pickle.dumps(self.KEY)

    def test_errors_do_not_repeat_a_key(self, tmp_path, caplog):
        path = tmp_path / "key"
        for text in (self.CANARY + "0", self.CANARY[:-1], "key = " + self.CANARY, self.CANARY[:-1] + "g"):
            path.write_text(text)
            for call in (lambda: load_policy(None, path), lambda text=text: SigningKey.from_hex(text)):
                with pytest.raises(WeightsyncError) as caught:
                    call()
                assert not self.leaks("".join(traceback.format_exception(caught.value)))
        with caplog.at_level(logging.DEBUG), pytest.raises(Denied) as denied:
            Policy(TRUSTED, self.KEY).seal(BODY, Role.PUBLISHER)
        assert not self.leaks(str(denied.value) + repr(denied.value) + caplog.text)

    def test_a_trusted_file_given_a_secret_by_mistake_is_not_repeated(self, tmp_path):
        path = tmp_path / "trusted.toml"
        path.write_text(f'publisher = ["{self.CANARY}00"]')
        with pytest.raises(Invalid) as caught:
            load_policy(path, None)
        assert not self.leaks("".join(traceback.format_exception(caught.value)))

    def test_what_is_stored_does_not_hold_it(self):
        envelope = Policy(None, self.KEY).seal(BODY, Role.PUBLISHER)
        assert not self.leaks(envelope.data.decode())


@pytest.mark.parametrize("text", ["", "a" * 63, "a" * 65, "g" * 64, "a" * 62 + "0x"])
def test_keys_are_64_digits(text):
    for kind in (PublicKey, SigningKey):
        with pytest.raises(Invalid, match="64 hexadecimal digits"):
            kind.from_hex(text)


def test_a_public_key_that_is_no_point_signs_nothing():
    key = PublicKey.from_hex("ff" * 32)
    with pytest.raises(Corrupt):
        Policy({Role.PUBLISHER: [key]}).check(seal(BODY, [Signature(key.name, "0" * 128)]), Role.PUBLISHER, "x")
