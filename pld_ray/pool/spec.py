"""What a base-policy pool is made of: one dataclass."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pld_ray.config.policy import PoolOptions
from pld_ray.options import check_options, option
from pld_ray.policies import BasePolicy
from pld_ray.policies.checkpoint import open_checkpoint

LEROBOT = "pld_ray.policies:load_base_policy"


@dataclasses.dataclass
class PoolSpec(PoolOptions):
    """A pool: which policy, how many replicas of it, and how they share the work."""

    arguments: dict[str, Any | None] = option(
        {},
        "Keyword arguments of `make_policy`; of LeRobot policies those of `LeRobotBasePolicy`, "
        "with `device` `cuda` if the replicas have a GPU share and `path` readable on every node.",
    )
    make_policy: str = option(
        LEROBOT, "Another kind of policy: the function that makes it, as `module:function`."
    )
    resources: dict[str, float] = option(
        {}, "Custom Ray resources of each replica.", within="[0, 1e6]"
    )
    scheduling_strategy: Literal["DEFAULT", "SPREAD"] = option(
        "DEFAULT", "`SPREAD` puts the replicas on different nodes, `DEFAULT` packs."
    )
    check_room: bool = option(
        True, "Refuse replicas for which the cluster has no room now, instead of waiting for it."
    )
    late_after_s: float = option(
        30.0,
        "Seconds after which a client asks a second replica as well; half the deadline at most.",
        within="(0, 1e6]",
        unit="s",
    )
    start_timeout_s: float = option(
        600.0, "Seconds that a replica may take to load and warm up.", within="(0, 1e6]", unit="s"
    )
    scale_up_after_s: float = option(
        2.0, "Seconds of higher load before replicas are added.", within="[0, 1e6]", unit="s"
    )
    scale_down_after_s: float = option(
        60.0, "Seconds of lower load before one is removed.", within="[0, 1e6]", unit="s"
    )

    def check(self, prefix: str = "") -> None:
        """Check types and ranges; `prefix` begins the names of the options in messages.

        Raises:
            ValueError: naming the option.
        """
        check_options(self, prefix)
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError(
                f"{prefix}max_replicas={self.max_replicas}: must be null or at least "
                f"{prefix}replicas={self.replicas}"
            )

    def located(self) -> PoolSpec:
        """With arguments that mean the same on every node.

        Raises:
            FileNotFoundError, ValueError: the checkpoint is not usable, or `make_policy` is no
                "module:function".
        """
        if self.make_policy != LEROBOT:
            if ":" not in self.make_policy:  # else the module may exist on the nodes only
                resolve(self.make_policy)
            return self
        path = self.arguments.get("path")
        checkpoint = open_checkpoint(path)
        if path is not None and Path(path).expanduser().is_dir():
            path = str(checkpoint.directory)
        device = "cuda" if self.num_gpus_per_replica > 0 else "cpu"
        arguments = {"device": device, **self.arguments, "path": path}
        return dataclasses.replace(self, arguments=arguments)

    def needs(self) -> dict[str, float]:
        """Ray resources of each replica."""
        shares = {"CPU": self.num_cpus_per_replica, "GPU": self.num_gpus_per_replica}
        return {name: amount for name, amount in {**shares, **self.resources}.items() if amount}


def resolve(make_policy: str) -> Callable[..., BasePolicy]:
    """The function that "module:function" names.

    Raises:
        ValueError: not of that form, or there is no such function.
    """
    module, _, name = make_policy.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"make_policy {make_policy!r} cannot be loaded ({error}): give 'module:function', "
            "importable on every node"
        ) from error
