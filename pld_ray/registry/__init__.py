"""MLflow's model registry: the best policy of a run with its signature, and a loader that acts."""

from pld_ray.registry.register import RegisteredPolicy, load_policy, register_policy

__all__ = ["RegisteredPolicy", "load_policy", "register_policy"]
