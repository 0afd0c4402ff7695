"""Sampling servers beside training loops of user programs."""
