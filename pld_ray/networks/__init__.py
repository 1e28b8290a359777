"""Building blocks: plain `torch.nn`, knowing neither environments nor replay."""

from pld_ray.networks.critic_ensemble import CriticEnsemble
from pld_ray.networks.gaussian_actor import GaussianActor
from pld_ray.networks.normalizer import ObservationNormalizer

__all__ = ["CriticEnsemble", "GaussianActor", "ObservationNormalizer"]
