"""Environments by name: `sort`, `sort:8`, `arithmetic`, `arithmetic:3`, `gym:NAME` (reasoning-gym), `python` (real execution)."""

from weightsync.rl.environments.open import open_environment

__all__ = ["open_environment"]
