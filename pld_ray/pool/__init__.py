"""A base policy in Ray actors: batching, routing, scaling, faults."""

from pld_ray.pool.client import PoolClient
from pld_ray.pool.placement import PoolError
from pld_ray.pool.pool import BasePolicyPool
from pld_ray.pool.spec import PoolSpec

__all__ = ["BasePolicyPool", "PoolClient", "PoolError", "PoolSpec"]
