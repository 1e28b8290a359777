"""Residual SAC as RLlib's users know it: configuration, algorithm, learner, module, env runner."""

from pld_ray.rllib.algorithm import ResidualSAC
from pld_ray.rllib.config import ResidualSACConfig

__all__ = ["ResidualSAC", "ResidualSACConfig"]
