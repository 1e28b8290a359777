"""The learner: columns into the replay, gradient steps, weights out."""

from __future__ import annotations

import collections
import contextlib
import pathlib
import warnings
from collections.abc import Iterator
from typing import Any

import ray
import torch
from ray.rllib.core import COMPONENT_OPTIMIZER, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from torch.optim import Optimizer

from pld_ray.algorithm.nonfinite import NonFiniteLossError, NonFiniteTrainingError
from pld_ray.algorithm.residual.pretrained import LEARNER_FILE
from pld_ray.algorithm.shards import Shard
from pld_ray.algorithm.stored_columns import make_replay, replay_schema
from pld_ray.data.normalizer import Normalizer
from pld_ray.files.state_tree import load_tree, save_tree
from pld_ray.replay import FrameRing
from pld_ray.rllib.intake import Intake
from pld_ray.rllib.learners import LearnerReport, Work
from pld_ray.rllib.update_thread import UpdateThread
from pld_ray.rollout.messages import PublishedWeights

UPDATE_STATE = "residual_sac_update"
CHECKPOINTED = [COMPONENT_RL_MODULE, COMPONENT_OPTIMIZER, UPDATE_STATE]
CONFIGURED = ("lr", "weight_decay")
"""Of an optimiser: the configuration's, whatever a checkpoint says. A population's copy of a trial
takes the moments over, and has rates of its own."""
# columns come read-only out of the object store; they are copied into the ring and never written
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


class OffPolicyLearner(Intake, TorchLearner):
    """Owns the replay beside the networks; each call of its is a method with a name.

    Of several learners each owns a shard of the replay; gradients are averaged over all of them.
    Weights carry no version, so that a runner takes whatever it is given. A subclass says what is
    learnt: `update_class` and `make_optimizers`.
    """

    ring = FrameRing
    """Of which kind the two rings are."""
    update_class: type[Any]
    """Of `GradientSteps`."""
    thread: UpdateThread | None = None
    """That makes updates, where they have one."""

    def build(self) -> None:
        super().build()
        self.params = self.config.learner_params()
        self.shard = self.own_shard()
        seed = self.shard.seed(self.config.seed or 0)
        module = self.module[DEFAULT_MODULE_ID].unwrapped()
        self.networks: Any = module.networks
        if self.networks.frozen_features is not None:
            self.networks.frozen_features.to(self.device)
        schema = replay_schema(self.networks, module.observation_space, module.action_space)
        self.replay = make_replay(
            schema, self.params, self.replay_device(), seed, self.shard.count, self.ring
        )
        names = self.make_optimizers(self.networks)
        self.gradient_steps = self.make_update(
            {name: self.get_optimizer(DEFAULT_MODULE_ID, name) for name in names}, seed
        )
        self._failure_dir: str | None = None
        self.lost_steps = collections.deque()  # the thread writes too

    def shutdown(self) -> None:
        """RLlib's; and the thread ends, which would hold networks and replay, and update on."""
        if self.thread is not None:
            self.thread.abandon()
            self.thread = None
        super().shutdown()

    def own_shard(self) -> Shard:
        """Which part of the replay is this learner's."""
        return Shard.of_this_process()

    def replay_device(self) -> torch.device:
        """Where the rings are."""
        return self.device

    def make_optimizers(self, networks: Any) -> dict[str, Optimizer]:
        """An optimiser of each group of parameters, by name."""
        raise NotImplementedError

    def make_update(self, optimizers: dict[str, Optimizer], seed: int) -> Any:
        """`GradientSteps` on `self.networks` from `self.replay`."""
        replay, params, shard = self.replay, self.params, self.shard
        return self.update_class(
            self.networks, optimizers, replay, params, seed, all_reduce=shard.all_reduce
        )

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        networks = self.module[module_id].unwrapped().networks
        for name, optimizer in self.make_optimizers(networks).items():
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

    def update(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("call store() and train(), or initialize_critic()")

    # --- replay ----------------------------------------------------------------------------------

    def fit_normalizer(self, state: Normalizer | None = None) -> None:
        """Take observation statistics from what the replay holds, of all learners.

        Args:
            state: of observation.state, in place of what the replay would give.
        """
        normalizer = self.networks.normalizer
        if self.params.normalize_observations:
            normalizer.fit(self.shard.gather(self.replay.observations()))
        if state is not None:  # the observation's first values, see VECTOR_KEYS
            center, scale = torch.from_numpy(state.center), torch.from_numpy(state.scale)
            normalizer.put(slice(0, len(center)), center, scale)

    # --- updates ---------------------------------------------------------------------------------

    def train(
        self, num_updates: int, residual_scale: float | None = None, failure_dir: str | None = None
    ) -> dict[str, float]:
        """Updates on the replay.

        Args:
            num_updates: how many.
            residual_scale: beta_t from now on.
            failure_dir: folder for the offending batch when a loss is not finite.

        Returns:
            Mean metrics; empty while the replay is.

        Raises:
            NonFiniteTrainingError: a loss is not finite; the message names it and the saved batch.
        """
        if residual_scale is not None:
            self.set_residual_scale(residual_scale)
        with finite_or_saved(failure_dir):
            return self._run_updates(num_updates)

    def set_residual_scale(self, residual_scale: float) -> None:
        """beta from now on, where there is a residual."""

    # --- updates in a thread of their own, see rllib/asynchronous.py -----------------------------

    def start_updating(
        self, publish_interval: int, updates: int, failure_dir: str | None = None
    ) -> None:
        """Make updates in a thread from now on; one that runs already is stopped first.

        Args:
            publish_interval: updates between two publications of weights.
            updates: made so far.
            failure_dir: as for `train`.
        """
        self._failure_dir = failure_dir
        if self.thread is not None:
            self.thread.stop()
        self.thread = UpdateThread(
            self._store_work, self._run_updates, self._publish, publish_interval, updates
        )

    def submit(self, work: Work) -> None:
        """Queue episodes and updates for the thread."""
        assert self.thread is not None, "start_updating() comes first"
        self.thread.submit(work)

    def drain(self) -> None:
        """Return when the thread has done all that was submitted."""
        if self.thread is not None:
            self.thread.drain()

    def poll(self, wait_s: float = 0.0) -> LearnerReport:
        """What the thread did since the last call.

        Args:
            wait_s: seconds to wait for an update at most.

        Raises:
            NonFiniteTrainingError, ReturnRangeError: as `train` and `store`.
        """
        assert self.thread is not None, "start_updating() comes first"
        with finite_or_saved(self._failure_dir):
            report = self.thread.poll(wait_s)
        report.stored = self.stored()
        return report

    def _store_work(self, work: Work) -> None:
        self.write(work.batches)
        if work.residual_scale is not None:
            self.set_residual_scale(work.residual_scale)

    def _run_updates(self, num_updates: int) -> dict[str, float]:
        if not self.shard.all_true(len(self.replay) > 0):
            return {}
        return self.gradient_steps.run(num_updates)

    def _publish(self, updates: int) -> PublishedWeights | None:
        """The inference state to the object store, by the first learner."""
        if self.shard.rank:
            return None
        state = super().get_state(components=COMPONENT_RL_MODULE, inference_only=True)
        return PublishedWeights(updates, ray.put(state))

    # --- checkpoint ------------------------------------------------------------------------------

    def get_state(self, components: Any = None, *, not_components: Any = None, **kw: Any) -> dict:
        with contextlib.nullcontext() if self.thread is None else self.thread.paused():
            state = super().get_state(components, not_components=not_components, **kw)
            if self._check_component(UPDATE_STATE, components, not_components):
                state[UPDATE_STATE] = self._update_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        optimizers = dict(self.get_optimizers_for_module(DEFAULT_MODULE_ID)).values()
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        own = [{name: group[name] for name in CONFIGURED} for group in groups]
        super().set_state(state)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        for group, settings in zip(groups, own, strict=True):
            group.update(settings)
        self._weights_seq_no = 0  # a checkpoint of an older release has a version
        if UPDATE_STATE in state:
            self._set_update_state(state[UPDATE_STATE])

    def save(self, folder: str, state: dict[str, Any] | None = None) -> None:
        """Networks, optimisers, the update's state and both rings, without pickle.

        Learner 0 writes the networks and optimisers, which all learners share; each writes its own
        shard of the replay and its own generator.

        Args:
            folder: where to.
            state: of the first two, where all learners have put it together before.
        """
        path = pathlib.Path(folder)
        if self.shard.rank == 0:
            state = state or self.get_state(components=CHECKPOINTED)
            save_tree(path / LEARNER_FILE, state)
        else:
            save_tree(path / self.shard.name("update"), self._update_state())
        for name, ring in self._rings():
            ring.save(path / self.shard.name("replay") / name)

    def load(self, folder: str) -> None:
        """Read what `save` wrote.

        Raises:
            ValueError: the checkpoint was written by another number of learners.
        """
        path = pathlib.Path(folder)
        self.shard.check_saved(path)
        self.set_state(load_tree(path / LEARNER_FILE))
        if self.shard.rank:
            self._set_update_state(load_tree(path / self.shard.name("update")))
        for name, ring in self._rings():
            ring.load(path / self.shard.name("replay") / name)

    def _rings(self) -> list[tuple[str, Any]]:
        return [("offline", self.replay.offline), ("online", self.replay.online)]

    def _update_state(self) -> dict[str, Any]:
        return self.gradient_steps.state_dict()

    def _set_update_state(self, state: dict[str, Any]) -> None:
        self.gradient_steps.load_state_dict(state)


@contextlib.contextmanager
def finite_or_saved(failure_dir: str | None) -> Iterator[None]:
    """A loss that is not finite becomes NonFiniteTrainingError, with its batch in the folder."""
    try:
        yield
    except NonFiniteLossError as error:
        raise NonFiniteTrainingError.of(error, failure_dir) from error
