"""A small learner on random episodes, for the tests of the update and of Cal-QL."""

import numpy as np
import torch

from pld_ray.algorithm.optimizers import target_pairs
from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.update import ResidualSACUpdate, make_optimizers
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema, SymmetricReplay

OBS, ACT, BATCH = 5, 3, 16
PLAIN = {
    "n_step": 3,
    "actor_delay_n_step": 0,
    "actor_lr_warmup_updates": 0,
    "gamma": 0.98,
    "utd": 1.0,
    "critic_actor_update_ratio": 2,
    "num_critics": 2,
    "ema_decay": 0.0,
    "success_imitation": 0.0,
    "conservative_weight": 0.0,
    "log_std_init": -1.0,
    "exploration_rho": 0.9,
}
"""A learner of two critics that owes one update per step, without average and imitation."""


def make_params(**kwargs):
    defaults = {
        "residual_dims": [1.0, 0.5, 0.0],
        "residual_scale": 0.6,
        "batch_size": BATCH,
        "hidden_dims": [16, 16],
        "critic_actor_update_ratio": 1,
        "temperature_init": 0.1,
        "n_step": 2,
        "actor_delay_updates": 0,
        "critic_atoms": 1,
    }
    return ResidualSACParams(**(PLAIN | defaults | kwargs))


def make_ring(seed, episodes=4, length=12, discrete=False, action_dim=ACT, device="cpu"):
    scalar, flag, action = ColumnSpec(()), ColumnSpec((), "bool"), ColumnSpec((action_dim,))
    columns = {
        "observation.state": ColumnSpec((OBS,)),
        "base_action": action,
        "action": action,
        "reward": scalar,
        "terminated": flag,
        "truncated": flag,
        "residual_scale": scalar,
        "intervened": flag,
        "succeeded": flag,
    }
    if discrete:
        columns |= {"discrete_action": scalar, "discrete_penalty": scalar}
    ring = FrameRing(ReplaySchema(columns, ["observation.state"]), 1000, device, seed=seed)
    rng = np.random.default_rng(seed)
    for number in range(episodes):
        rows = length + 1
        episode = {
            "observation.state": rng.standard_normal((rows, OBS)).astype(np.float32),
            "base_action": rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32),
            "action": rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32),
            "reward": np.zeros(rows, np.float32),
            "terminated": np.zeros(rows, bool),
            "truncated": np.zeros(rows, bool),
            "residual_scale": np.full(rows, 0.6, np.float32),
            "intervened": np.zeros(rows, bool),
            "succeeded": np.full(rows, number % 2 == 0),
        }
        if discrete:
            episode["discrete_action"] = rng.integers(3, size=rows).astype(np.float32)
            episode["discrete_penalty"] = rng.choice([0, -0.02], size=rows).astype(np.float32)
        if number % 2 == 0:
            episode["reward"][length - 1] = 1.0
            episode["terminated"][length - 1] = True
        ring.add_episodes(episode, [length], 0.98)
    return ring


def make_update(params=None, seed=0, discrete=False, action_dim=ACT, device="cpu", **kwargs):
    params = params or make_params()
    with torch.random.fork_rng():
        torch.manual_seed(7)
        networks = ResidualNetworks(OBS, action_dim, params)
        # a head that is not zero, so that nothing vanishes by symmetry
        torch.nn.init.normal_(networks.actor.head.weight, std=0.1)
        # targets that differ from what they follow, so that one cannot stand for the other
        with torch.no_grad():
            for target in target_pairs(networks)[0]:
                target.add_(0.2 * torch.randn_like(target))
    networks.to(device)
    offline, online = (
        make_ring(s, discrete=discrete, action_dim=action_dim, device=device) for s in (1, 2)
    )
    replay = SymmetricReplay(offline, online)
    networks.normalizer.fit(replay.observations())
    optimizers = make_optimizers(networks, params)
    return ResidualSACUpdate(networks, optimizers, replay, params, seed=seed, **kwargs)


def weights(update):
    return {k: v.clone() for k, v in update.networks.state_dict().items()}


def same_weights(one, other):
    return all(torch.equal(one[k], other[k]) for k in one)
