"""Residual SAC on a frozen base policy (seed 002; PLD)."""
