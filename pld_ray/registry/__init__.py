"""MLflow's model registry: base + residual of a run as one model, and a loader that acts."""

from pld_ray.registry.register import RegisteredPolicy, load_policy, register_policy

__all__ = ["RegisteredPolicy", "load_policy", "register_policy"]
