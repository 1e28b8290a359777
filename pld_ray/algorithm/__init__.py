"""Residual SAC: plain-PyTorch losses and update, and the RLlib algorithm around them.

`ResidualSACConfig` and `ResidualSAC` are imported on first use, so that losses and update need no
Ray.
"""

from typing import TYPE_CHECKING, Any

from pld_ray.algorithm.params import ResidualSACParams

if TYPE_CHECKING:
    from pld_ray.algorithm.algorithm import ResidualSAC
    from pld_ray.algorithm.config import ResidualSACConfig

__all__ = ["ResidualSAC", "ResidualSACConfig", "ResidualSACParams"]


def __getattr__(name: str) -> Any:
    if name == "ResidualSACConfig":
        from pld_ray.algorithm.config import ResidualSACConfig

        return ResidualSACConfig
    if name == "ResidualSAC":
        from pld_ray.algorithm.algorithm import ResidualSAC

        return ResidualSAC
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
