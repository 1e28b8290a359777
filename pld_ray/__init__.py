"""Residual reinforcement learning on frozen robot policies, on Ray RLlib."""
