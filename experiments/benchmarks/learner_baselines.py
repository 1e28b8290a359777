"""What the learner is timed against: bare PyTorch, LeRobot's SAC, RLlib's SAC.

Each contestant has `name` and `run(n)`, which makes n updates: sampling, one critic step, one actor
step, one temperature step and the target.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OBSERVATION_DIM, ACTION_DIM, WIDTH, BATCH, NUM_CRITICS = 64, 7, 256, 256, 2
ROWS = 20_000
EPISODE_LENGTH = 200
GAMMA, TAU, LR = 0.99, 0.005, 3e-4


class Contestant:
    """A name and a way to make n updates."""

    def __init__(self, name: str, update: Callable[[], Any]) -> None:
        self.name = name
        self.update = update

    def run(self, num_updates: int) -> None:
        for _ in range(num_updates):
            self.update()


# --- bare PyTorch --------------------------------------------------------------------------------


class SeparateCritics(nn.Module):
    """Two MLPs of `nn.Linear`."""

    def __init__(self) -> None:
        super().__init__()
        width = OBSERVATION_DIM + ACTION_DIM
        self.members = nn.ModuleList(mlp(width, 1) for _ in range(NUM_CRITICS))

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat((x, action), -1)
        return torch.stack([q(inputs).squeeze(-1) for q in self.members])


class BatchedCritics(nn.Module):
    """Two MLPs, a batched product per layer, the last one as a product and a sum."""

    def __init__(self) -> None:
        super().__init__()

        def weight(inputs: int, outputs: int) -> nn.Parameter:
            values = torch.randn(NUM_CRITICS, inputs, outputs) / math.sqrt(inputs)
            return nn.Parameter(values)

        self.w1 = weight(OBSERVATION_DIM + ACTION_DIM, WIDTH)
        self.w2, self.w3 = weight(WIDTH, WIDTH), weight(1, WIDTH)
        self.b1 = nn.Parameter(torch.zeros(NUM_CRITICS, 1, WIDTH))
        self.b2 = nn.Parameter(torch.zeros(NUM_CRITICS, 1, WIDTH))
        self.b3 = nn.Parameter(torch.zeros(NUM_CRITICS, 1))

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat((x, action), -1).expand(NUM_CRITICS, -1, -1)
        hidden = torch.baddbmm(self.b1, inputs, self.w1).relu_()
        hidden = torch.baddbmm(self.b2, hidden, self.w2).relu_()
        return (hidden * self.w3).sum(-1) + self.b3


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(inplace=True),
        nn.Linear(WIDTH, outputs),
    )


def bare_loop(critics: type[nn.Module], name: str) -> Contestant:
    """Residual SAC in one closure: no options, no figures, no checks, one gather per batch."""
    torch.manual_seed(0)
    obs, act = OBSERVATION_DIM, ACTION_DIM
    actor = mlp(obs + act, 2 * act)
    q = critics()
    q_target = copy.deepcopy(q).requires_grad_(False)
    log_alpha = nn.Parameter(torch.zeros(1))
    actor_parameters, q_parameters = list(actor.parameters()), list(q.parameters())
    target_parameters = list(q_target.parameters())
    actor_optimizer = torch.optim.Adam(actor_parameters, LR, fused=True)
    q_optimizer = torch.optim.Adam(q_parameters, LR, fused=True)
    alpha_optimizer = torch.optim.Adam([log_alpha], LR, fused=True)
    half = obs + act
    rows = torch.randn(ROWS, 2 * half + act + 2).clamp_(-1, 1)
    rows[:, -1] = (torch.rand(ROWS) < 1 / EPISODE_LENGTH).float()

    def sample_action(x: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = actor(torch.cat((x, base), -1)).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        slope = 2 * (math.log(2) - u - F.softplus(-2 * u))
        log_prob = (-0.5 * noise * noise - log_std - 0.9189385332 - slope).sum(-1)
        return (base + torch.tanh(u)).clamp(-1, 1), log_prob

    def update() -> None:
        batch = rows.index_select(0, torch.randint(ROWS, (BATCH,)))
        x, base, x2, base2, action, reward, done = batch.split((obs, act, obs, act, act, 1, 1), 1)
        with torch.no_grad():
            alpha = log_alpha.exp()
            action2, log_prob2 = sample_action(x2, base2)
            value = q_target(x2, action2).amin(0) - alpha * log_prob2
            target = reward[:, 0] + GAMMA * (1 - done[:, 0]) * value
        loss = (q(x, action) - target).square().mean(-1).sum()
        q_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        q_optimizer.step()
        policy_action, log_prob = sample_action(x, base)
        loss = (alpha * log_prob - q(x, policy_action).amin(0)).mean()
        actor_optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=actor_parameters)
        actor_optimizer.step()
        alpha_optimizer.zero_grad(set_to_none=True)
        (-log_alpha * (log_prob.detach() - act / 2).mean()).backward()
        alpha_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(target_parameters, q_parameters, TAU)

    return Contestant(name, update)


# --- LeRobot -------------------------------------------------------------------------------------


def lerobot_sac() -> Contestant:
    """LeRobot's SAC through its own trainer and replay buffer, hidden layers 256-256."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies import make_pre_post_processors
    from lerobot.policies.gaussian_actor.configuration_gaussian_actor import GaussianActorConfig
    from lerobot.policies.gaussian_actor.modeling_gaussian_actor import GaussianActorPolicy
    from lerobot.rl import (
        OnlineOfflineMixer,
        ReplayBuffer,
        RLTrainer,
        SACAlgorithmConfig,
        make_algorithm,
    )

    class SynchronousMixer(OnlineOfflineMixer):
        """Samples in the training thread: every contestant has one thread."""

        def get_iterator(self, batch_size: int, *args: Any, **kwargs: Any) -> Any:
            return super().get_iterator(batch_size, async_prefetch=False)

    obs, act, key = OBSERVATION_DIM, ACTION_DIM, "observation.state"
    config = GaussianActorConfig(
        device="cpu",
        input_features={key: PolicyFeature(FeatureType.STATE, (obs,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (act,))},
        dataset_stats={
            key: {"min": [-3.0] * obs, "max": [3.0] * obs},
            "action": {"min": [-1.0] * act, "max": [1.0] * act},
        },
        num_discrete_actions=None,
        push_to_hub=False,
    )
    policy = GaussianActorPolicy(config)
    policy.train()
    algorithm = make_algorithm(SACAlgorithmConfig.from_policy_config(config), policy)
    buffer = ReplayBuffer(
        ROWS, device="cpu", state_keys=[key], storage_device="cpu", optimize_memory=True
    )
    for row in range(5_000):
        done = row % EPISODE_LENGTH == EPISODE_LENGTH - 1
        state, following = {key: torch.randn(1, obs)}, {key: torch.randn(1, obs)}
        buffer.add(state, torch.rand(1, act) * 2 - 1, 0.0, following, done, False)
    preprocessor, _ = make_pre_post_processors(config, dataset_stats=config.dataset_stats)
    mixer = SynchronousMixer(buffer, None)
    trainer = RLTrainer(algorithm, mixer, BATCH, preprocessor=preprocessor)
    return Contestant("lerobot", trainer.training_step)


# --- RLlib ---------------------------------------------------------------------------------------


class RandomEnv(gym.Env):
    """Random observations, next to no cost per step."""

    def __init__(self, config: Any = None) -> None:
        self.observation_space = gym.spaces.Box(-10, 10, (OBSERVATION_DIM,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (ACTION_DIM,), np.float32)
        self._rng = np.random.default_rng(0)
        self._time = 0

    def _observation(self) -> np.ndarray:
        return self._rng.standard_normal(OBSERVATION_DIM, dtype=np.float32).clip(-9, 9)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        self._time = 0
        return self._observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._time += 1
        return self._observation(), 0.0, False, self._time >= EPISODE_LENGTH, {}


class RLlibSAC:
    """RLlib's SAC, local: `training_step`, one update and the one environment step that it takes.

    Args:
        name: in the table of figures.
        equal_nets: the networks of the other contestants instead of RLlib's default ones.
        uniform_replay: `EpisodeReplayBuffer` instead of the stock prioritised episode buffer.
    """

    def __init__(self, name: str, equal_nets: bool, uniform_replay: bool = False) -> None:
        import ray
        from ray.rllib.algorithms.sac import SACConfig

        self.name = name
        if not ray.is_initialized():
            ray.init(
                num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False
            )
        config = (
            SACConfig()
            .environment(RandomEnv)
            .env_runners(num_env_runners=0)
            .training(
                train_batch_size_per_learner=BATCH, num_steps_sampled_before_learning_starts=1_000
            )
            .learners(num_learners=0)
            .debugging(log_level="ERROR")
        )
        if equal_nets:
            config.rl_module(rl_module_spec=equal_nets_spec())
        if uniform_replay:
            config.training(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": ROWS})
        self.algorithm = config.build_algo()
        for _ in range(1_010):
            self.algorithm.training_step()

    def run(self, num_updates: int) -> None:
        for _ in range(num_updates):
            self.algorithm.training_step()

    def stop(self) -> None:
        self.algorithm.stop()


def shut_down_ray() -> None:
    """End the local Ray that `RLlibSAC` started."""
    import ray

    ray.shutdown()


def equal_nets_spec() -> Any:
    """RLlib's SAC module with the plain 256-256 networks of the other contestants."""
    from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
    from ray.rllib.core.columns import Columns
    from ray.rllib.core.models.base import ENCODER_OUT
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    class Encoder(nn.Module):
        def __init__(self, columns: tuple[str, ...], inputs: int) -> None:
            super().__init__()
            self.columns = columns
            self.net = mlp(inputs, 1)[:-1]

        def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            return {ENCODER_OUT: self.net(torch.cat([batch[c] for c in self.columns], -1))}

    class EqualNets(DefaultSACTorchRLModule):
        def setup(self) -> None:
            obs, act = OBSERVATION_DIM, ACTION_DIM
            self.twin_q = True
            self.pi_encoder, self.pi = Encoder((Columns.OBS,), obs), nn.Linear(WIDTH, 2 * act)
            if not self.inference_only:
                q_columns = (Columns.OBS, Columns.ACTIONS)
                self.qf_encoder = Encoder(q_columns, obs + act)
                self.qf_twin_encoder = Encoder(q_columns, obs + act)
                self.qf, self.qf_twin = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    return RLModuleSpec(module_class=EqualNets)
