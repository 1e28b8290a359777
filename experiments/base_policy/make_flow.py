"""Make a base policy that sees: two cameras and the robot's own state, and nothing else.

    python experiments/base_policy/make_flow.py --dataset DIR --output DIR

records demonstrations of the embedded default task to --dataset (on again after a stop), clones a
flow from them on one CPU thread and writes it as a policy folder, with its success on the held init
states. The demonstrator sees the can too far from the middle, like that of `make_act.py`. Needs a
GL library (README, "Camera images").
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from demonstrations import FPS, Disturbance, demonstrate
from evaluation import evaluate
from torch import Tensor, nn

import envs
from envs.demonstrator import Demonstrator
from envs.experts import Perception
from envs.rendering import FAST
from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.columns import Columns
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.data.demonstrations import Wanted, episodes_in
from pld_ray.data.episode_writer import EpisodeWriter, Recording
from pld_ray.policies import load_base_policy
from pld_ray.policies.checkpoint import open_checkpoint
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy
from pld_ray.rollout.episode import EpisodeBuilder

PROVENANCE = "PROVENANCE.json"
SUITE, TASK = "pld_tabletop", "pick_up_the_can_and_place_it_in_the_bin"
SEEN: dict[str, Any] = {
    "cameras": ["image", "image2"],
    "image_size": 64,
    "rendering": FAST,
    "environment_state": False,
}
ACTION = "action"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", type=Path, required=True, help="folder of the dataset")
    parser.add_argument("--output", type=Path, required=True, help="folder of the policy")
    parser.add_argument("--episodes", type=int, default=150)
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--scale-error", type=float, default=0.43, help="see Perception")
    parser.add_argument("--disturbance", type=float, default=Disturbance.std)
    parser.add_argument("--eval-states", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    env = envs.LiberoEnv(SUITE, TASK, **SEEN)
    episodes = record(env, arguments)
    policy, loss = clone(env, episodes, arguments.updates, arguments.seed)
    write_policy(arguments.output, policy)
    outcome = evaluate(
        load_base_policy(arguments.output), SUITE, TASK, range(arguments.eval_states), **SEEN
    )
    provenance: dict[str, Any] = {
        "command": "python experiments/base_policy/make_flow.py --dataset DIR "
        f"--episodes {arguments.episodes} --updates {arguments.updates} "
        f"--scale-error {arguments.scale_error} --disturbance {arguments.disturbance} "
        f"--seed {arguments.seed}",
        "seed": arguments.seed,
        "demonstrations": {
            TASK: {
                "episodes": len(episodes),
                "frames": sum(len(episode[ACTION]) - 1 for episode in episodes),
            }
        },
        "final_loss": round(loss, 4),
        "fingerprint": open_checkpoint(arguments.output).fingerprint(),
        "evaluation": {TASK: {"base": outcome.summary()}},
    }
    (arguments.output / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n")
    print(outcome.summary())
    env.close()


def record(env: envs.LiberoEnv, arguments: argparse.Namespace) -> list[Columns]:
    """Demonstrate what the dataset lacks, and read all of it; actions are the commands."""
    about = {
        k: v for k, v in vars(arguments).items() if k in ("scale_error", "disturbance", "seed")
    }
    if not (arguments.dataset / "meta").exists():
        writer = EpisodeWriter(
            arguments.dataset, Recording(env.task_description, FPS, "libero", about)
        )
        demonstrator = Demonstrator(env, Perception(scale_error=arguments.scale_error))
        disturbance = Disturbance(std=arguments.disturbance)
        while len(writer) < arguments.episodes:
            rng = np.random.default_rng([arguments.seed, len(writer)])
            seed = int(rng.integers(2**31))
            builder = EpisodeBuilder()
            for step in demonstrate(env, demonstrator, disturbance, rng, seed):
                builder.add(
                    batched(step.observation),
                    0,
                    step.command,
                    step.reward,
                    step.terminated,
                    step.truncated,
                    residual_scale=0.0,
                )
            writer.add(builder.finish(batched(step.next_observation), 0, step.terminated))
            if len(writer) % 10 == 0:
                print(f"{len(writer)} episodes, {sum(writer.successes)} successes", flush=True)
        writer.finish()
    wanted = Wanted(
        {key: space.shape for key, space in env.observation_space.spaces.items()},
        env.action_space.low,
        env.action_space.high,
        FPS,
        TASK,
    )
    read = episodes_in(str(arguments.dataset), wanted, successes_only=False)
    return [columns for _, _, columns in read]


def batched(observation: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One row of each column."""
    return {key: value[None] for key, value in observation.items()}


def flow_params() -> ACRLPDParams:
    """A small flow with an encoder of its own for two cameras; one draw of it is played."""
    params = ACRLPDParams(
        horizon=8,
        n_action_steps=4,
        num_candidates=1,
        flow_steps=5,
        hidden_dims=[256, 256],
        num_critics=2,
        vision_encoder_name="cnn",
        freeze_vision_encoder=False,
        latent_dim=64,
        ema_decay=0.998,
    )
    params.validate()
    return params


def clone(
    env: envs.LiberoEnv, episodes: list[Columns], updates: int, seed: int, batch_size: int = 128
) -> tuple[ChunkPolicy, float]:
    """The flow that clones all episodes, and its mean loss over the last 200 updates."""
    networks = ChunkedNetworks.of_spaces(
        env.observation_space, env.action_space, flow_params(), seed
    )
    frames, windows, valid = windows_of(networks, episodes)
    networks.fit_actions(frames[ACTION])
    networks.normalizer.fit(frames["observation"])
    actions = networks.to_unit(frames[ACTION])
    optimizer = torch.optim.AdamW(networks.actor.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, updates, pct_start=0.05)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    started = time.monotonic()
    for update in range(1, updates + 1):
        rows = torch.randint(len(windows), (batch_size,), generator=generator)
        batch = {k: v[windows[rows, 0]] for k, v in frames.items() if k != ACTION}
        noise = torch.randn(batch_size, *networks.actor.noise_shape, generator=generator)
        times = torch.rand(batch_size, generator=generator)
        seen = networks.actor.observe(*networks.seen(batch))
        loss = networks.actor.bc_loss(
            seen, actions[windows[rows]], valid[rows].float(), noise, times
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        follow(networks.ema_actor, networks.actor, networks.params.ema_decay)
        losses.append(loss.item())
        if update % 200 == 0:
            print(
                f"{update} updates, loss {np.mean(losses[-200:]):.4f}, "
                f"{time.monotonic() - started:.0f} s",
                flush=True,
            )
    shapes = {key: space.shape for key, space in env.observation_space.spaces.items()}
    return ChunkPolicy(networks.eval(), shapes), float(np.mean(losses[-200:]))


def windows_of(
    networks: ChunkedNetworks, episodes: list[Columns]
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """All frames as the networks see them, and the windows of H frames that begin at each.

    Returns:
        columns [N, ...]; rows [N, H]; which of them lie in the window's own episode [N, H].
    """
    horizon = networks.params.horizon
    parts: list[dict[str, Tensor]] = []
    rows, valid = [], []
    first = 0
    for episode in episodes:
        length = len(episode[ACTION]) - 1
        seen = {k: torch.from_numpy(v[:length]) for k, v in episode.items() if "observation" in k}
        parts.append(
            {**networks.as_batch(seen), ACTION: torch.from_numpy(episode[ACTION][:length])}
        )
        steps = np.arange(length)[:, None] + np.arange(horizon)
        rows.append(first + np.minimum(steps, length - 1))
        valid.append(steps < length)
        first += length
    frames = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return frames, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(valid))


@torch.no_grad()
def follow(average: nn.Module, of: nn.Module, decay: float) -> None:
    """average <- decay average + (1 - decay) of."""
    torch._foreach_lerp_(list(average.parameters()), list(of.parameters()), 1.0 - decay)


if __name__ == "__main__":
    main()
