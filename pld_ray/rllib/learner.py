"""The learner: a thin wrapper, columns into the replay, `ResidualSACUpdate`, weights out."""

from __future__ import annotations

import collections
import contextlib
import math
import pathlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray.rllib.core import (
    ALL_MODULES,
    COMPONENT_OPTIMIZER,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.core.learner.torch.torch_learner import TorchLearner

from pld_ray.algorithm.residual.calql import CalQLInitialization
from pld_ray.algorithm.residual.stored_columns import make_replay, with_features, with_scaled_reward
from pld_ray.algorithm.residual.update import NonFiniteLossError, ResidualSACUpdate, make_optimizers
from pld_ray.errors import UserError
from pld_ray.files.state_tree import load_tree, save_tree
from pld_ray.files.tensors import save_tensors
from pld_ray.rllib.pretrained import load_critic
from pld_ray.rllib.shards import Shard
from pld_ray.rllib.update_thread import UpdateThread, Work
from pld_ray.rollout.episode import concatenate_episodes, split_episodes
from pld_ray.rollout.messages import PublishedWeights, fetch_columns

UPDATE_STATE = "residual_sac_update"
# columns come read-only out of the object store; they are copied into the ring and never written
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
CHECKPOINTED = [COMPONENT_RL_MODULE, COMPONENT_OPTIMIZER, UPDATE_STATE]


class NonFiniteTrainingError(UserError, RuntimeError):
    """Training stopped at a loss that is not finite; the message names it and the saved batch."""


@dataclass
class Told:
    """What a learner tells when it is polled.

    Attributes:
        updates: made since it was last polled.
        weights: the newest publication; None if there was none since.
        lost_steps: steps told of and never received.
        metrics: reduced; None without an update.
    """

    updates: int
    weights: PublishedWeights | None
    lost_steps: int
    metrics: Any = None


class ReturnRangeError(UserError, ValueError):
    """The reward leaves the range that the critic was configured for; the message says by what."""


class ResidualSACLearner(TorchLearner):
    """Owns the replay beside the networks and makes many gradient steps per call.

    Of several learners each owns a shard of the replay; gradients are averaged over all of them.
    """

    def build(self) -> None:
        super().build()
        params = self.config.residual_sac_params()
        self.shard = Shard.of_this_process()
        seed = self.shard.seed(self.config.seed or 0)
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        self.frozen_features = module.frozen_features
        if self.frozen_features is not None:
            self.frozen_features.to(self.device)
        self.replay = make_replay(module, params, self.device, seed, self.shard.count)
        optimizers = {
            name: self.get_optimizer(DEFAULT_MODULE_ID, name)
            for name in make_optimizers(module, params)
        }
        self.sac = ResidualSACUpdate(
            module, optimizers, self.replay, params, seed, all_reduce=self.shard.all_reduce
        )
        self.calql = CalQLInitialization(self.sac, self.replay.offline)
        self.thread: UpdateThread | None = None
        self._lost_steps: collections.deque[int] = collections.deque()  # the thread writes too

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

    def _make_modules_ddp_if_necessary(self) -> None:
        """Nothing: gradients are averaged by `Shard.all_reduce`, DDP would hide attributes."""

    def compute_loss_for_module(self, **kwargs: Any) -> Any:
        raise NotImplementedError("the losses are in losses.py, applied by update.py")

    def update(  # type: ignore[override]
        self,
        *,
        batches: Sequence[dict[str, Any]] = (),
        num_updates: int = 0,
        calql_steps: int = 0,
        residual_scale: float | None = None,
        fit_normalizer: bool = False,
        pretrained_critic: str | None = None,
        failure_dir: str | None = None,
        timesteps: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Write columns into the replay, then make gradient steps.

        Args:
            batches: each with `columns` (arrays, or a reference to them), `episode_lengths`,
                `buffer`, `online` or `offline`, and `shard`, the learner that stores it.
            num_updates: critic steps of residual SAC.
            calql_steps: critic steps of the Cal-QL initialisation, before them.
            residual_scale: beta_t from now on.
            fit_normalizer: take observation statistics from what the replay holds now.
            pretrained_critic: folder of a checkpoint whose critic and observation statistics are
                taken over.
            failure_dir: folder for the offending batch when a loss is not finite.

        Raises:
            NonFiniteTrainingError: a loss is not finite; the message names it and the saved batch.
            ReturnRangeError: a return lies outside `value_range` of a categorical critic.
            OfflineDataError: Cal-QL without a success in the offline buffer.
            PretrainedCriticError: the pretrained critic is missing or of another shape.
        """
        self._check_is_built()
        self.before_gradient_based_update(timesteps=timesteps or {})
        for batch in batches:
            self._store(batch)
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        if residual_scale is not None:
            module.residual_scale.fill_(residual_scale)
        if pretrained_critic is not None:
            load_critic(module, pretrained_critic)
        elif fit_normalizer and self.config.residual_sac_params().normalize_observations:
            module.normalizer.fit(self.shard.gather(self.replay.observations()))
        try:
            if calql_steps:
                self.calql.check(self.replay.offline, self.config.reward_bias)
                self._log(self.calql.run(calql_steps))
            if num_updates and self.shard.all_true(len(self.replay) > 0):
                self._log(self.sac.run(num_updates))
                self.metrics.log_value(
                    (ALL_MODULES, "num_updates_lifetime"), num_updates, reduce="lifetime_sum"
                )
        except NonFiniteLossError as error:
            raise NonFiniteTrainingError(describe_failure(error, failure_dir)) from error
        self._weights_seq_no += 1
        if batches:
            self._log_replay()
        self.after_gradient_based_update(timesteps=timesteps or {})
        return self.metrics.reduce()

    # --- updates in a thread of their own, see rllib/asynchronous.py -------------------------

    def start_updating(
        self, publish_interval: int, updates: int, failure_dir: str | None = None
    ) -> None:
        """Make updates in a thread from now on; one that runs already is stopped first.

        Args:
            publish_interval: updates between two publications of weights.
            updates: made so far.
            failure_dir: folder for the offending batch when a loss is not finite.
        """
        self.failure_dir = failure_dir
        if self.thread is not None:
            self.thread.stop()
        self.thread = UpdateThread(
            self._store_work, self._run_updates, self._publish, publish_interval, updates
        )

    def submit(self, work: Work) -> None:
        """Queue columns and updates for the thread."""
        assert self.thread is not None, "start_updating() comes first"
        self.thread.submit(work)

    def drain(self) -> None:
        """Return when the thread has done all that was submitted."""
        if self.thread is not None:
            self.thread.drain()

    def take_lost_steps(self) -> int:
        """Steps told of and never received, because their runner's node died; counts them once."""
        lost = 0
        while self._lost_steps:
            lost += self._lost_steps.popleft()
        return lost

    def poll(self, wait_s: float = 0.0) -> Told:
        """What the thread did since the last call.

        Args:
            wait_s: seconds to wait for an update at most.

        Raises:
            NonFiniteTrainingError, ReturnRangeError: as `update`.
        """
        assert self.thread is not None, "start_updating() comes first"
        try:
            progress = self.thread.poll(wait_s)
        except NonFiniteLossError as error:
            raise NonFiniteTrainingError(describe_failure(error, self.failure_dir)) from error
        told = Told(progress.updates, progress.published, self.take_lost_steps())
        if not progress.updates:
            return told
        self.before_gradient_based_update(timesteps={})
        names = {name for figures in progress.figures for name in figures}
        for name in sorted(names):
            values = [figures[name] for figures in progress.figures if name in figures]
            self.metrics.log_value((DEFAULT_MODULE_ID, name), sum(values) / len(values), window=1)
        self.metrics.log_value(
            (ALL_MODULES, "num_updates_lifetime"), progress.updates, reduce="lifetime_sum"
        )
        self._log_replay()
        self.after_gradient_based_update(timesteps={})
        told.metrics = self.metrics.reduce()
        return told

    def _store_work(self, work: Work) -> None:
        for batch in work.batches:
            self._store(batch)
        if work.residual_scale is not None:
            self.module[DEFAULT_MODULE_ID].unwrapped().residual_scale.fill_(work.residual_scale)

    def _run_updates(self, num_updates: int) -> dict[str, float]:
        if not self.shard.all_true(len(self.replay) > 0):
            return {}
        return self.sac.run(num_updates)

    def _publish(self, updates: int) -> PublishedWeights | None:
        """The inference state to the object store, by the first learner."""
        if self.shard.rank:
            return None
        state = super().get_state(components=COMPONENT_RL_MODULE, inference_only=True)
        return PublishedWeights(updates, ray.put(state))

    def _log_replay(self) -> None:
        for name, ring in (("online", self.replay.online), ("offline", self.replay.offline)):
            self.metrics.log_value((ALL_MODULES, f"replay_{name}"), len(ring), window=1)

    def _store(self, batch: dict[str, Any]) -> None:
        """One batch into its ring, if it belongs to this shard."""
        if batch.get("shard", 0) % self.shard.count != self.shard.rank:
            return
        if not batch["episode_lengths"]:
            return
        columns, lengths = batch["columns"], batch["episode_lengths"]
        columns = fetch_columns(columns)
        if columns is None:
            skipped = batch.get("skip", [])
            self._lost_steps.append(sum(n for k, n in enumerate(lengths) if k not in skipped))
            return
        if batch.get("skip"):
            kept = [
                episode
                for k, episode in enumerate(split_episodes(columns, lengths))
                if k not in batch["skip"]
            ]
            columns, lengths = concatenate_episodes(kept)
        if not lengths:
            return
        ring = self.replay.offline if batch["buffer"] == "offline" else self.replay.online
        columns = with_scaled_reward(columns, self.config.reward_scale, self.config.reward_bias)
        columns = with_features(columns, ring.schema, self.frozen_features)
        ring.add_episodes(columns, lengths, self.config.gamma)
        if self.config.critic_atoms > 1:
            added = ring.start_rows()[-sum(lengths) :]
            check_returns(ring.column("mc_return", added), self.config.value_range)

    def _log(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self.metrics.log_value((DEFAULT_MODULE_ID, name), value, window=1)

    # --- checkpoint ------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kw: Any) -> dict:
        with contextlib.nullcontext() if self.thread is None else self.thread.paused():
            state = super().get_state(components, not_components=not_components, **kw)
            if self._check_component(UPDATE_STATE, components, not_components):
                state[UPDATE_STATE] = self._update_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        # an older checkpoint restored in place must win over newer weights
        self._weights_seq_no = 0
        super().set_state(state)
        if UPDATE_STATE in state:
            self._set_update_state(state[UPDATE_STATE])

    def save(self, folder: str) -> None:
        """Networks, optimisers, the update's state and both rings, without pickle.

        Learner 0 writes the networks and optimisers, which all learners share; each writes its own
        shard of the replay and its own generator.
        """
        path = pathlib.Path(folder)
        if self.shard.rank == 0:
            save_tree(path / "learner", self.get_state(components=CHECKPOINTED))
        else:
            save_tree(path / self.shard.name("update"), self._update_state())
        self.replay.offline.save(path / self.shard.name("replay") / "offline")
        self.replay.online.save(path / self.shard.name("replay") / "online")

    def load(self, folder: str) -> None:
        """Read what `save` wrote.

        Raises:
            ValueError: the checkpoint was written by another number of learners.
        """
        path = pathlib.Path(folder)
        self.shard.check_saved(path)
        self.set_state(load_tree(path / "learner"))
        if self.shard.rank:
            self._set_update_state(load_tree(path / self.shard.name("update")))
        self.replay.offline.load(path / self.shard.name("replay") / "offline")
        self.replay.online.load(path / self.shard.name("replay") / "online")

    def set_temperature(self, temperature: float) -> None:
        """Put alpha to a value; its optimiser goes on with the moments it has."""
        with torch.no_grad():
            self.sac.networks.log_alpha.fill_(math.log(temperature))

    def _update_state(self) -> dict[str, Any]:
        return {**self.sac.state_dict(), "calql": self.calql.state_dict()}

    def _set_update_state(self, state: dict[str, Any]) -> None:
        self.sac.load_state_dict(state)
        if "calql" in state:
            self.calql.load_state_dict(state["calql"])


def check_returns(returns: torch.Tensor, value_range: Sequence[float]) -> None:
    """Raise ReturnRangeError if a categorical critic could not represent these returns."""
    low, high = float(returns.min()), float(returns.max())
    if low < value_range[0] - 1e-6 or high > value_range[1] + 1e-6:
        raise ReturnRangeError(
            f"discounted returns between {low:.4g} and {high:.4g} lie outside "
            f"algorithm.value_range={list(value_range)}, all that the categorical critic can "
            "represent: set it to the returns that the reward allows, or set critic_atoms=1"
        )


def describe_failure(error: NonFiniteLossError, failure_dir: str | None) -> str:
    """Save the offending batch and say where it is and what to do."""
    saved = ""
    if failure_dir is not None:
        path = pathlib.Path(failure_dir) / f"nonfinite_{error.name}_{error.step}.safetensors"
        batch = {k: torch.as_tensor(v).contiguous().cpu() for k, v in error.batch.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_tensors(batch, path)
            saved = f"; the batch is in {path}"
        except OSError as why:
            saved = f"; the batch could not be kept ({why})"
    return (
        f"{error.name} is not finite at update {error.step}{saved}. Training stopped before the "
        "weights were published: lower the learning rate or set grad_clip_norm, then resume from "
        "the last checkpoint"
    )
