"""The learner: a thin wrapper, columns into the replay, `ResidualSACUpdate`, weights out."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.core import (
    ALL_MODULES,
    COMPONENT_OPTIMIZER,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from safetensors.torch import save_file

from pld_ray.algorithm.module import BASE_ACTION
from pld_ray.algorithm.state_file import load_tree, save_tree
from pld_ray.algorithm.update import NonFiniteLossError, ResidualSACUpdate, make_optimizers
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema, SymmetricReplay

UPDATE_STATE = "residual_sac_update"
CHECKPOINTED = [COMPONENT_RL_MODULE, COMPONENT_OPTIMIZER, UPDATE_STATE]


class NonFiniteTrainingError(RuntimeError):
    """Training stopped at a loss that is not finite; the message names it and the saved batch."""


class ResidualSACLearner(TorchLearner):
    """Owns the replay beside the networks and makes many gradient steps per call."""

    def build(self) -> None:
        super().build()
        params = self.config.residual_sac_params()
        seed = self.config.seed or 0
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        schema = replay_schema(module)
        self.replay = SymmetricReplay(
            offline=FrameRing(schema, params.offline_capacity, self.device, seed=2 * seed),
            online=FrameRing(schema, params.online_capacity, self.device, seed=2 * seed + 1),
        )
        optimizers = {
            name: self.get_optimizer(DEFAULT_MODULE_ID, name)
            for name in ("critic", "actor", "temperature")
        }
        self.sac = ResidualSACUpdate(module, optimizers, self.replay, params, seed=seed)

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        params = self.config.residual_sac_params()
        optimizers = make_optimizers(self.module[module_id].unwrapped(), params)
        for name, optimizer in optimizers.items():
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self.register_optimizer(
                module_id=module_id,
                optimizer_name=name,
                optimizer=optimizer,
                params=parameters,
                lr_or_lr_schedule=optimizer.param_groups[0]["lr"],
            )

    def compute_loss_for_module(self, **kwargs: Any) -> Any:
        raise NotImplementedError("the losses are in algorithm/losses.py, applied by update.py")

    def update(  # type: ignore[override]
        self,
        *,
        batches: Sequence[dict[str, Any]] = (),
        num_updates: int = 0,
        residual_scale: float | None = None,
        fit_normalizer: bool = False,
        failure_dir: str | None = None,
        timesteps: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Write columns into the replay, then make `num_updates` gradient steps.

        Args:
            batches: each with `columns` (arrays, or a reference to them), `episode_lengths` and
                `buffer`, `online` or `offline`.
            num_updates: critic steps.
            residual_scale: beta_t from now on.
            fit_normalizer: take observation statistics from what the replay holds now.
            failure_dir: folder for the offending batch when a loss is not finite.

        Raises:
            NonFiniteTrainingError: a loss is not finite; the message names it and the saved batch.
        """
        self._check_is_built()
        params = self.config.residual_sac_params()
        self.before_gradient_based_update(timesteps=timesteps or {})
        for batch in batches:
            columns = batch["columns"]
            if isinstance(columns, ray.ObjectRef):
                columns = ray.get(columns)
            ring = self.replay.offline if batch["buffer"] == "offline" else self.replay.online
            if batch["episode_lengths"]:
                ring.add_episodes(columns, batch["episode_lengths"], params.gamma)
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        if residual_scale is not None:
            module.residual_scale.fill_(residual_scale)
        if fit_normalizer and params.normalize_observations:
            module.normalizer.fit(self.replay.observations())
        if num_updates and len(self.replay):
            try:
                stats = self.sac.run(num_updates)
            except NonFiniteLossError as error:
                raise NonFiniteTrainingError(describe_failure(error, failure_dir)) from error
            for name, value in stats.items():
                self.metrics.log_value((DEFAULT_MODULE_ID, name), value, window=1)
            self.metrics.log_value(
                (ALL_MODULES, "num_updates_lifetime"), num_updates, reduce="lifetime_sum"
            )
        self._weights_seq_no += 1
        rings = (("online", self.replay.online), ("offline", self.replay.offline))
        for name, ring in rings if batches else ():
            self.metrics.log_value((ALL_MODULES, f"replay_{name}"), len(ring), window=1)
        self.after_gradient_based_update(timesteps=timesteps or {})
        return self.metrics.reduce()

    # --- checkpoint ------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kw: Any) -> dict:
        state = super().get_state(components, not_components=not_components, **kw)
        if self._check_component(UPDATE_STATE, components, not_components):
            state[UPDATE_STATE] = self.sac.state_dict()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        # an older checkpoint restored in place must win over newer weights
        self._weights_seq_no = 0
        super().set_state(state)
        if UPDATE_STATE in state:
            self.sac.load_state_dict(state[UPDATE_STATE])

    def save(self, folder: str) -> None:
        """Networks, optimisers, the update's state and both rings, without pickle."""
        path = pathlib.Path(folder)
        save_tree(path / "learner", self.get_state(components=CHECKPOINTED))
        self.replay.offline.save(path / "replay" / "offline")
        self.replay.online.save(path / "replay" / "online")

    def load(self, folder: str) -> None:
        """Read what `save` wrote."""
        path = pathlib.Path(folder)
        self.set_state(load_tree(path / "learner"))
        self.replay.offline.load(path / "replay" / "offline")
        self.replay.online.load(path / "replay" / "online")


def replay_schema(module: Any) -> ReplaySchema:
    """The replay's columns for this module's spaces."""
    columns = {
        key: ColumnSpec(tuple(space.shape), str(np.dtype(space.dtype)))
        for key, space in module.observation_space.spaces.items()
        if key != BASE_ACTION
    }
    action = ColumnSpec(tuple(module.action_space.shape), "float32")
    columns |= {BASE_ACTION: action, "action": action}
    columns |= {
        "reward": ColumnSpec((), "float32"),
        "terminated": ColumnSpec((), "bool"),
        "truncated": ColumnSpec((), "bool"),
        "residual_scale": ColumnSpec((), "float32"),
        "intervened": ColumnSpec((), "bool"),
        "mc_return": ColumnSpec((), "float32"),
    }
    return ReplaySchema(columns, module.observation_keys)


def describe_failure(error: NonFiniteLossError, failure_dir: str | None) -> str:
    """Save the offending batch and say where it is and what to do."""
    saved = ""
    if failure_dir is not None:
        path = pathlib.Path(failure_dir) / f"nonfinite_{error.name}_{error.step}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        batch = {k: torch.as_tensor(v).contiguous().cpu() for k, v in error.batch.items()}
        save_file(batch, str(path))
        saved = f"; the batch is in {path}"
    return (
        f"{error.name} is not finite at update {error.step}{saved}. Training stopped before the "
        "weights were published: lower the learning rate or set grad_clip_norm, then resume from "
        "the last checkpoint"
    )
