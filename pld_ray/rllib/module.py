"""The RLModule: `ResidualNetworks` behind RLlib's API."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.numpy import convert_to_numpy
from ray.rllib.utils.torch_utils import convert_to_torch_tensor

from pld_ray.algorithm.residual.networks import ResidualNetworks, trained_only
from pld_ray.columns import BASE_ACTION
from pld_ray.config.residual_sac import ResidualSACParams


class ResidualModule(TorchRLModule, InferenceOnlyAPI):
    """Holds the networks whole; an inference-only module holds those of their parts that act.

    Its state is the networks' own, temperature, beta and observation statistics included, so that
    a checkpoint and a weight sync carry all of them.
    """

    def setup(self) -> None:
        self.networks = ResidualNetworks.of_spaces(
            self.observation_space,
            self.action_space,
            ResidualSACParams(**self.model_config["params"]),
            self.model_config["seed"],
            self.model_config.get("tasks", ()),
        )
        if self.inference_only:
            self.networks.keep_what_acts()

    def get_non_inference_attributes(self) -> list[str]:
        networks = self.networks
        parts = [n for n in trained_only(networks.params) if getattr(networks, n) is not None]
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

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        with torch.no_grad():
            return {Columns.ACTIONS: self.networks.act(batch[Columns.OBS])[0]}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        observation = batch[Columns.OBS]
        with torch.no_grad():
            noise = torch.randn_like(observation[BASE_ACTION])
            return {Columns.ACTIONS: self.networks.act(observation, noise)[0]}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError("ResidualSACUpdate trains this module; see update.py")
