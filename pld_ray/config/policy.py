"""The frozen base policy: which one, where it runs, and the actors of its pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pld_ray.options import option

EMBEDDED_POLICIES = ("pld_tabletop_act", "pld_tabletop_act_five_demonstrations")
"""Base policies that ship with the library, by name."""


@dataclass
class PolicyPlace:
    """Which base policy, and where it runs."""

    type: Literal["lerobot", "none"] = option(
        "lerobot", "`lerobot`, or `none`: a base action of zeros, for learning from scratch."
    )
    path: str | None = option(
        None,
        "A LeRobot checkpoint folder, or `owner/name` of the hub; None is the policy shipped for "
        "`pld_tabletop`, which errs by some centimetres. `pld_tabletop_act_five_demonstrations` is "
        "shipped too: it saw five good demonstrations of can to bin, from the middle of the "
        "region, and fails for want of data.",
        path="repository",
        values=EMBEDDED_POLICIES,
    )
    placement: Literal["inline", "pool"] = option(
        "inline",
        "`inline`: in each env runner. `pool`: Ray actors that batch the requests of all runners.",
    )


@dataclass
class PoolOptions:
    """The actors of a base-policy pool, and how they batch; `PoolSpec` adds what a run decides."""

    replicas: int = option(
        1, "Actors of the pool; the least of them when `max_replicas` is set.", within="[1, 1024]"
    )
    max_replicas: int | None = option(
        None,
        "The pool grows up to this many actors when requests queue up; None keeps `replicas`.",
        within="[1, 1024]",
    )
    max_batch_size: int = option(
        16, "Rows that one pool request batch may hold.", within="[1, 4096]"
    )
    max_wait_ms: float = option(
        25.0,
        "Milliseconds for which a replica waits for callers in lock step at most; others are never "
        "waited for.",
        within="[0, 60000]",
        unit="ms",
    )
    num_cpus_per_replica: float = option(1.0, "CPU share of each replica.", within="[0, 1024]")
    num_gpus_per_replica: float = option(0.0, "GPU share of each replica.", within="[0, 64]")
    deadline_s: float = option(
        300.0,
        "Seconds within which the pool answers a request, retries on other replicas included.",
        within="(0, 1e6]",
        unit="s",
    )
    hang_timeout_s: float = option(
        60.0,
        "Seconds of one inference after which a replica is killed and replaced.",
        within="(0, 1e6]",
        unit="s",
    )


@dataclass
class PolicyConfig(PoolOptions, PolicyPlace):
    """The frozen base policy."""

    prefetch: bool = option(
        False, "Ask for the next chunk one step ahead, so that inference overlaps simulation."
    )
    rtc: bool = option(
        False,
        "Real-time chunking: a prefetched chunk continues what is left of the one being played "
        "(smolvla, pi0, pi05).",
    )
    dtype: Literal["float32", "bfloat16"] | None = option(
        None, "`float32` or `bfloat16`; None keeps the checkpoint's."
    )
    compile: bool = option(False, "`torch.compile` the network; worth it on a GPU.")
    n_action_steps: int | None = option(
        None,
        "Actions of a chunk that are played; None is the checkpoint's own number.",
        within="[1, 10000]",
    )
    rename_map: dict[str, str] = option(
        {}, "Environment's observation name -> the policy's, as in LeRobot."
    )
    features: Literal["none", "pooled"] = option(
        "none",
        "`pooled` gives the networks what a vision-language policy (smolvla, pi0, pi05) saw "
        "when it made the chunk, at no extra forward pass; `none` does not.",
    )
    tokenizer_path: str | None = option(
        None,
        "Local folder of the language tokeniser, for policies that name one on the hub.",
        path="folder",
    )

    def settings(self) -> dict[str, Any]:
        """`base_policy` of an `env_config` (`create_vector_env`) that plays this policy."""
        return {"type": self.type, "path": self.path, **self.loader()}

    def loader(self) -> dict[str, Any]:
        """What `load_base_policy` is given beside the path; only what differs from its defaults."""
        settings = {
            "dtype": self.dtype,
            "compile": self.compile,
            "n_action_steps": self.n_action_steps,
            "rename_map": dict(self.rename_map),
            "tokenizer_path": self.tokenizer_path,
            "features": None if self.features == "none" else self.features,
            "rtc": self.rtc,
        }
        return {name: value for name, value in settings.items() if value}
