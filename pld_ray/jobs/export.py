"""`pld-ray export`: what a run of Q-chunking has learnt, as a policy folder."""

from __future__ import annotations

import pathlib

import torch

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.residual.pretrained import read_networks
from pld_ray.config import ConfigError
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.jobs.build import open_environment
from pld_ray.policies.actors import load_actor, write_actor
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy
from pld_ray.rollout.factory import task_instructions
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.trust import check_trusted


def export(
    run_dir: pathlib.Path, folder: pathlib.Path, name: str | None = None, trust: bool = False
) -> pathlib.Path:
    """Write the averaged policy of a checkpoint, and the critics that choose for it.

    A LeRobot policy is written as one, without critics: one draw of it is played.

    Args:
        run_dir: of the run.
        folder: new or empty.
        name: of the checkpoint; None is `best`, or the newest one where there is none.
        trust: open the environment that a foreign run names, see `pld_ray.runs.trust`.

    Returns:
        The checkpoint.

    Raises:
        ConfigError: the run is of another algorithm, has no checkpoint, or the folder is in use.
        CheckpointError: the checkpoint is damaged.
    """
    run = RunDir(run_dir)
    config = run.load_config()
    if not isinstance(config, ACRLPDTrainConfig):
        raise ConfigError(
            f"{run_dir} is no run of pld-ray acrlpd: pld-ray register keeps a residual with its "
            "base policy"
        )
    check_trusted(config, run.path / "config.yaml", trust)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--to={folder} holds something already: give a new folder")
    checkpoint = chosen(run, name)
    env = open_environment(config)
    params, spaces = config.algorithm, env.observation_space
    tasks = task_instructions(config.env.settings())
    seeing = load_actor(params, tasks)
    networks = ChunkedNetworks.of_spaces(
        spaces, env.action_space, params, seeing=seeing, tasks=tasks
    )
    env.close()
    saved = read_networks(checkpoint)
    networks.load_state_dict({key: torch.as_tensor(value) for key, value in saved.items()})
    if seeing is not None:
        write_actor(networks.ema_actor, folder)
        return checkpoint
    shapes = {key: tuple(space.shape or ()) for key, space in spaces.items()}
    write_policy(folder, ChunkPolicy(networks, shapes), tasks)
    return checkpoint


def chosen(run: RunDir, name: str | None) -> pathlib.Path:
    """The checkpoint of that name; `best`, or the newest.

    Raises:
        ConfigError: there is none.
    """
    if name is not None:
        return run.checkpoint_named(name)
    best = run.checkpoints / "best"
    found = best if best.is_dir() else run.latest_checkpoint()
    if found is None:
        raise ConfigError(f"{run.path} has no checkpoint yet: wait for one, or train on")
    return found
