"""Who may write which record: Ed25519 signatures over a record's digest, and the policy that demands them."""

from weightsync.trust.policy import UNSIGNED, Policy, Role, load_policy
from weightsync.trust.signing import PublicKey, SigningKey

__all__ = ["UNSIGNED", "Policy", "PublicKey", "Role", "SigningKey", "load_policy"]
