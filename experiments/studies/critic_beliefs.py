"""What the critics of a run believe, against what happens: along its checkpoints.

    pld-ray train --checkpoint.interval_steps=1000 --checkpoint.keep=100 --output_dir=RUN
    python -m experiments.studies.critic_beliefs RUN [--states 30] [--json]

From the same stored init states the base policy plays (delta = 0), and the actor that acts, without
noise. At every step on the way the critics (mean of the members, gamma of the run) are asked, and
the discounted return that really followed is their measure. Episodes end as those of the training
do (`env.terminate_when_toppled`), so a success rate here may be below that of an evaluation:

- `base_q`, `base_return`: of the base policy's action on its own path
- `actor_q`, `actor_return`: of the actor's action on the actor's path
- `promise`: on the base policy's path, what one actor's action is believed to add:
  Q(x, base + delta) - Q(x, base)
- `gain`: what it adds when the actor plays from the start: the difference of both discounted
  returns at the first step, over the same init states
- `delta`: mean |delta| over the dimensions that carry one, on the actor's path
- `ahead`: mean distance there, a dimension, of the trained actor from the one that acts (0 without
  an average), and `ahead_promise` what the critics believe that it adds, which nobody has tried
"""

from __future__ import annotations

import argparse
import json
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pld_ray.algorithm.residual.networks import ResidualNetworks
from pld_ray.algorithm.residual.pretrained import read_networks
from pld_ray.columns import BASE_ACTION
from pld_ray.config import TrainConfig
from pld_ray.evaluation.play import play_init_states, success_rate
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout.factory import create_vector_env
from pld_ray.rollout.vector_env import InfosPerEnv
from pld_ray.runs.run_dir import RunDir, checkpoint_age

NUM_ENVS = 5


@dataclass
class Path:
    """What was seen on one episode: the critics' Q at each step, and the return that followed."""

    q: np.ndarray
    """Of the action that was executed, [T]."""
    promise: np.ndarray
    """Q(x, base + delta) - Q(x, base), [T]."""
    delta: np.ndarray
    """Mean |delta| over the dimensions that carry one, [T]."""
    ahead: np.ndarray
    """Mean |delta of the trained actor - delta|, [T]."""
    ahead_promise: np.ndarray
    """Q(x, base + delta of the trained actor) - Q(x, base + delta), [T]."""
    returns: np.ndarray
    """Discounted, from each step on, [T]."""
    success: bool


def env_config_of(config: TrainConfig) -> dict[str, Any]:
    """The environments of a run, with its base policy, for `create_vector_env`."""
    env_config = ResidualSACConfig.of_run(config).env_config
    return {**env_config, "base_policy": config.policy.settings(), "num_envs": NUM_ENVS}


def networks_of(config: TrainConfig, env: Any, checkpoint: pathlib.Path) -> ResidualNetworks:
    """All networks of a checkpoint, critics included."""
    networks = ResidualNetworks.of_spaces(
        env.single_observation_space, env.single_action_space, config.algorithm
    )
    state = read_networks(checkpoint)
    prefix = "networks." if next(iter(state)).startswith("networks.") else ""
    networks.load_state_dict(
        {name.removeprefix(prefix): torch.as_tensor(value) for name, value in state.items()}
    )
    return networks.eval()


def play(env: Any, networks: ResidualNetworks, states: list[int], residual: bool) -> list[Path]:
    """One episode from each init state, by the actor without noise or by the base policy."""
    steps: list[dict[str, np.ndarray]] = []
    places: dict[int, list[tuple[int, int]]] = {state: [] for state in states}

    def act(observation: Any) -> np.ndarray:
        steps.append(ask(networks, observation))
        return steps[-1]["action"] if residual else observation[BASE_ACTION]

    def on_step(i: int, state: int) -> None:
        places[state].append((len(steps) - 1, i))

    results = play_init_states(env, states, act, on_step)
    gamma, paths = networks.params.gamma, []
    for state in states:
        seen = {k: np.array([steps[t][k][i] for t, i in places[state]]) for k in COLUMNS}
        length, success = len(places[state]), results[state].success
        returns = success * gamma ** np.arange(length - 1, -1, -1.0)
        q = seen["q_actor"] if residual else seen["q_base"]
        promise = seen["q_actor"] - seen["q_base"]
        ahead_promise = seen["q_trained"] - seen["q_actor"]
        paths.append(
            Path(q, promise, seen["delta"], seen["ahead"], ahead_promise, returns, success)
        )
    return paths


COLUMNS = ("q_base", "q_actor", "q_trained", "delta", "ahead")


@torch.no_grad()
def ask(networks: ResidualNetworks, observation: Any) -> dict[str, np.ndarray]:
    """The actor's action, and what the critics say of it and of the base policy's."""
    batch = networks.as_batch({k: torch.from_numpy(v) for k, v in observation.items()})
    base = torch.from_numpy(observation[BASE_ACTION])
    x = networks.encode(networks.encoder, batch)
    no_noise = torch.zeros_like(base)
    delta, _ = networks.residual_of(networks.acting_actor, x, base, no_noise)
    trained, _ = networks.residual(x, base, no_noise)
    action, untried = networks.compose(base, delta), networks.compose(base, trained)
    q = networks.critic.otf(x, base, torch.stack([base, action, untried])).mean(0)
    carried = networks.residual_dims > 0
    return {
        "action": action.numpy(),
        "q_base": q[0].numpy(),
        "q_actor": q[1].numpy(),
        "q_trained": q[2].numpy(),
        "delta": delta[:, carried].abs().mean(-1).numpy(),
        "ahead": (trained - delta)[:, carried].abs().mean(-1).numpy(),
    }


def beliefs(env: Any, networks: ResidualNetworks, states: list[int]) -> dict[str, float]:
    """The row of one checkpoint."""
    base = play(env, networks, states, residual=False)
    actor = play(env, networks, states, residual=True)

    def mean(values: list[np.ndarray]) -> float:
        return round(float(np.mean(np.concatenate(values))), 4)

    first = [a.returns[0] - b.returns[0] for a, b in zip(actor, base, strict=True)]
    return {
        "base_success": success_rate(base),  # type: ignore[arg-type]
        "actor_success": success_rate(actor),  # type: ignore[arg-type]
        "base_q": mean([path.q for path in base]),
        "base_return": mean([path.returns for path in base]),
        "actor_q": mean([path.q for path in actor]),
        "actor_return": mean([path.returns for path in actor]),
        "promise": mean([path.promise for path in base]),
        "gain": round(float(np.mean(first)), 4),
        "delta": mean([path.delta for path in actor]),
        "ahead": mean([path.ahead for path in actor]),
        "ahead_promise": mean([path.ahead_promise for path in actor]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--states", type=int, default=30, help="validation states played from")
    parser.add_argument("--json", action="store_true", help="one JSON object a checkpoint")
    args = parser.parse_args()
    run = RunDir(args.run)
    config = run.load_config()
    held = config.evaluation.held_states
    states = list(range(held, held + args.states))
    env = InfosPerEnv(create_vector_env(env_config_of(config)))
    for checkpoint in sorted(run.find_checkpoints(), key=checkpoint_age):
        networks = networks_of(config, env.unwrapped, checkpoint)
        row = {"checkpoint": checkpoint.name, **beliefs(env, networks, states)}
        print(json.dumps(row) if args.json else "  ".join(f"{k} {v}" for k, v in row.items()))
    env.close()


if __name__ == "__main__":
    main()
