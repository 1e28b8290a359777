"""What a trial under Ray Tune reserves for an algorithm."""

from __future__ import annotations

from typing import Any

from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm


class ReservesReplicas(Algorithm):
    """An algorithm whose trial reserves the replicas of its pool, beside all that RLlib starts.

    It is asked where Tune itself makes the algorithm. A sweep's trial is a `tune.Trainable` around
    one and reserves for it (`sweep/plan.py`).
    """

    @classmethod
    def default_resource_request(cls, config: Any) -> tune.PlacementGroupFactory:
        """RLlib's bundles, and one for each replica that the pool may grow to.

        Args:
            config: of the trial, as an `AlgorithmConfig` or the dict that Tune makes of it.
        """
        own = super().default_resource_request(config)
        built: Any = cls.get_default_config().update_from_dict(config)
        if not built.uses_pool:
            return own
        spec = built.pool_spec()
        replicas = [spec.needs()] * (spec.max_replicas or spec.replicas)
        bundles = [*own.bundles, *filter(None, replicas)]  # Ray refuses bundles of nothing
        return tune.PlacementGroupFactory(bundles, strategy=own.strategy)
