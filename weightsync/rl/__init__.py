"""Reinforcement learning with weightsync: so far a small policy that really learns, for demonstrations and measurements. Needs torch."""
