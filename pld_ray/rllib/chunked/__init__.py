"""Q-chunking (ACRLPD) on RLlib."""

from pld_ray.rllib.chunked.algorithm import ACRLPD
from pld_ray.rllib.chunked.config import ACRLPDConfig

__all__ = ["ACRLPD", "ACRLPDConfig"]
