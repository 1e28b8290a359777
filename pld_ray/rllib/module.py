"""The RLModules: networks behind RLlib's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.numpy import convert_to_numpy
from ray.rllib.utils.torch_utils import convert_to_torch_tensor

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.columns import BASE_ACTION, TASK_INDEX
from pld_ray.config.residual_sac import ResidualSACParams


class NetworksModule(TorchRLModule, InferenceOnlyAPI):
    """Holds networks whole; an inference-only module holds those of their parts that act.

    Its state is the networks' own, with all that they keep beside weights, so that a checkpoint
    and a weight sync carry all of it. A subclass makes the networks, and acts with them.
    """

    networks: Any

    def make_networks(self) -> Any:
        """`ResidualNetworks`, or something with its `trained_only`, `acting_state` and
        `keep_what_acts`."""
        raise NotImplementedError

    def setup(self) -> None:
        check_task_index(getattr(self.observation_space, "spaces", {}), self.model_config)
        self.networks = self.make_networks()
        if self.inference_only:
            self.networks.keep_what_acts()

    def get_non_inference_attributes(self) -> list[str]:
        parts = [n for n in self.networks.trained_only if getattr(self.networks, n) is not None]
        return [f"networks.{name}" for name in parts]

    def get_state(
        self, components: Any = None, *, inference_only: bool = False, **kwargs: Any
    ) -> Any:
        networks = self.networks
        return convert_to_numpy(
            networks.acting_state() if inference_only else networks.state_dict()
        )

    def set_state(self, state: Any) -> None:
        """Take a state over; an inference-only module leaves out what it does not have.

        Raises:
            RuntimeError: the state is of other networks.
        """
        own = self.networks.state_dict().keys()
        if self.inference_only:
            state = {name: value for name, value in state.items() if name in own}
        self.networks.load_state_dict(convert_to_torch_tensor(state))

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("the learner trains this module; see the algorithm's update.py")


def check_task_index(spaces: Mapping[str, Any], model_config: Mapping[str, Any]) -> None:
    """Refuse an environment that shows tasks of which a task embedding has no row.

    Args:
        spaces: of the observations.
        model_config: of the module.

    Raises:
        ValueError: naming the space of `task_index`, and how many tasks there are.
    """
    space, kind = spaces.get(TASK_INDEX), model_config["params"].get("task_embedding", "none")
    number = len(model_config.get("tasks", ()))
    if kind == "none" or not isinstance(space, gym.spaces.Box):  # the schema takes no other
        return
    if space.low.min() >= 0 and space.high.max() < number:
        return
    raise ValueError(
        f"the observation {TASK_INDEX} is {space}, and algorithm.task_embedding={kind} knows the "
        f"tasks of a run, {number} of them, numbered from 0: set it to none and let "
        "observation.state tell the tasks apart, or choose an environment of one task"
    )


class ResidualModule(NetworksModule):
    """`ResidualNetworks`, temperature, beta and observation statistics included."""

    def make_networks(self) -> ResidualNetworks:
        return ResidualNetworks.of_spaces(
            self.observation_space,
            self.action_space,
            ResidualSACParams.of_stored(self.model_config["params"]),
            self.model_config["seed"],
            self.model_config.get("tasks", ()),
        )

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {Columns.ACTIONS: self.networks.act(batch[Columns.OBS])[0]}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        observation = batch[Columns.OBS]
        with torch.no_grad():
            noise = torch.randn_like(observation[BASE_ACTION])
            return {Columns.ACTIONS: self.networks.act(observation, noise)[0]}
