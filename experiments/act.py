"""A registered policy acts alone: what a robot's program does with it, in the embedded environment.

python -m experiments.act models:/can-lifter@best sqlite:////data/runs/mlflow.db --task=lift_the_can
"""

from __future__ import annotations

import argparse

import numpy as np

import envs
from pld_ray.plugin.acting import ActingPolicy
from pld_ray.registry import load_policy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="models:/NAME@ALIAS or models:/NAME/VERSION")
    parser.add_argument("tracking_uri", help="of the MLflow store that it was registered in")
    parser.add_argument("--suite", default="pld_tabletop")
    parser.add_argument("--task", default="pick_up_the_can_and_place_it_in_the_bin")
    parser.add_argument("--n_episodes", type=int, default=10, help="init states 0, 1, ...")
    args = parser.parse_args()
    policy = load_policy(args.model, args.tracking_uri)
    env = envs.LiberoEnv(args.suite, args.task)
    successes = 0
    for state in range(args.n_episodes):
        actions, success = play(policy, env, state)
        successes += success
        how = "success" if success else "failure"
        print(f"init state {state}: {how} in {len(actions)} steps", flush=True)
    env.close()
    print(f"{successes} of {args.n_episodes} episodes succeeded")


def play(policy: ActingPolicy, env: envs.LiberoEnv, init_state: int) -> tuple[np.ndarray, bool]:
    """One episode from a stored init state.

    Returns:
        Its actions [L, A], and whether it succeeded.
    """
    observation, info = env.reset(options={"init_state_id": init_state})
    actions: list[np.ndarray] = []
    over = False
    while not over:
        batch = {key: value[None] for key, value in observation.items()}
        action = policy.predict(batch, [not actions], [info["task"]])[0]
        observation, _, terminated, truncated, info = env.step(action)
        actions.append(action)
        over = terminated or truncated
    return np.stack(actions), bool(info["is_success"])


if __name__ == "__main__":
    main()
