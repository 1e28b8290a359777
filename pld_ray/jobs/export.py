"""`pld-ray export`: what a run has learnt, as a policy folder that LeRobot loads."""

from __future__ import annotations

import contextlib
import pathlib
import shlex
import shutil
from typing import Any

import torch

from pld_ray.algorithm.chunked.networks import ChunkedNetworks
from pld_ray.algorithm.residual.networks import trained_only
from pld_ray.algorithm.residual.pretrained import read_networks
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.config.groups import EnvConfig
from pld_ray.files.atomic import undone_unless
from pld_ray.files.manifest import check_manifest
from pld_ray.jobs.build import open_environment
from pld_ray.jobs.distill_table import TABLE_FILE
from pld_ray.jobs.finetune_learner import played_tasks
from pld_ray.jobs.model_card import write_model_card
from pld_ray.plugin.policy_folder import check_base_policy, write_residual
from pld_ray.policies import base_policy_fingerprint
from pld_ray.policies.actors import load_actor, write_actor
from pld_ray.policies.chunk_policy import ChunkPolicy
from pld_ray.policies.exported import write_policy
from pld_ray.policies.spaces import describe_spaces, shapes_of
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rllib.trained_base import check_trained_on
from pld_ray.rollout.factory import env_maker, task_instructions
from pld_ray.runs.layout import BEST, CONFIG_FILE, POLICY_FOLDER
from pld_ray.runs.new_folder import check_empty
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.trust import check_trusted


def export(
    run_dir: pathlib.Path,
    folder: pathlib.Path,
    name: str | None = None,
    trust: bool = False,
    push_to: str | None = None,
) -> pathlib.Path:
    """Write the averaged policy of a checkpoint, whatever the run learnt.

    What was fine-tuned or distilled, and a LeRobot actor of Q-chunking, keep LeRobot's type.
    Q-chunking's own policy, with the critics that choose for it, and base + residual have types of
    ours, see `pld_ray.plugin`.

    Args:
        run_dir: of the run, or of a distillation.
        folder: new or empty.
        name: of the checkpoint; None is `best`, or the newest one where there is none.
        trust: open the environment that a foreign run names, see `pld_ray.runs.trust`.
        push_to: repository on the hub that the folder is uploaded to besides.

    Returns:
        The checkpoint.

    Raises:
        ConfigError: the run has no checkpoint, the folder is in use, the base policy is gone, or
            nobody is logged in to the hub.
        CheckpointError: the checkpoint is damaged.
    """
    check_empty(folder, "--to")
    if push_to is not None:
        check_login(push_to)
    is_distilled = not (run_dir / CONFIG_FILE).is_file() and (run_dir / POLICY_FOLDER).is_dir()
    with undone_unless(folder, lambda: False):
        if is_distilled and name is None:
            checkpoint = run_dir
            copy_policy(run_dir / POLICY_FOLDER, folder)
        else:
            run = RunDir(run_dir)
            config = run.load_config(object)
            checkpoint = chosen(run, name)
            check_trusted(config, run.path / CONFIG_FILE, trust)
            write(checkpoint, config, folder)
        table = run_dir / TABLE_FILE
        results = table.read_text() if is_distilled and table.is_file() else ""
        write_model_card(folder, environment_flags(run_dir), results)
    if push_to is not None:
        push(folder, push_to)
    return checkpoint


def write(checkpoint: pathlib.Path, config: Any, folder: pathlib.Path) -> None:
    """The policy of a checkpoint; see `export`."""
    if isinstance(config, FinetuneConfig):
        check_manifest(checkpoint)
        copy_policy(checkpoint / POLICY_FOLDER, folder)
    elif isinstance(config, ACRLPDTrainConfig):
        write_chunked(checkpoint, config, folder)
    else:
        write_base_and_residual(checkpoint, config, folder)


def copy_policy(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Copy a policy's folder, with the modes of new files: older releases wrote 0600."""
    shutil.copytree(source, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)


def write_chunked(
    checkpoint: pathlib.Path, config: ACRLPDTrainConfig, folder: pathlib.Path
) -> None:
    """Q-chunking's averaged policy; a LeRobot actor is written without critics, one draw is played.

    Raises:
        CheckpointError: the checkpoint is damaged.
    """
    with contextlib.closing(open_environment(config)) as env:
        spaces, actions = env.observation_space, env.action_space
    params, tasks = config.algorithm, task_instructions(config.env.settings())
    seeing = load_actor(params, tasks)
    networks = ChunkedNetworks.of_spaces(spaces, actions, params, seeing=seeing, tasks=tasks)
    saved = read_networks(checkpoint)
    networks.load_state_dict({key: torch.as_tensor(value) for key, value in saved.items()})
    if seeing is not None:
        write_actor(networks.ema_actor, folder)
        return
    write_policy(folder, ChunkPolicy(networks, shapes_of(spaces)), tasks)


def write_base_and_residual(
    checkpoint: pathlib.Path, config: TrainConfig, folder: pathlib.Path
) -> dict[str, Any]:
    """Base + residual, which act together as in evaluation.

    Returns:
        The content of `config.json`.

    Raises:
        CheckpointError, StateFileError: the checkpoint is damaged or incomplete.
        ConfigError: the base policy is gone, incomplete, or not the one that it was trained on.
    """
    policy = config.policy
    check_base_policy(policy)  # before the vision encoder in it is looked for
    found = base_policy_fingerprint(policy.type, policy.path)
    check_trained_on(checkpoint, found, policy.path)
    left_out = trained_only(config.algorithm)
    state = read_networks(checkpoint)
    acting = {key: value for key, value in state.items() if key.split(".")[0] not in left_out}
    spec = ResidualSACConfig.of_run(config).get_default_rl_module_spec()
    described = describe_environment(config)
    return write_residual(folder, acting, spec.model_config, described, policy)


def describe_environment(config: TrainConfig) -> dict[str, Any]:
    """The spaces of a run's environment and its instruction in words; it is opened for that, and an
    arm is not moved."""
    settings = config.env.settings()
    made: Any = env_maker(settings)()
    with contextlib.closing(made) as env:
        (task,) = task_instructions(settings)
        return {**describe_spaces(env.observation_space, env.action_space), "task": task}


def chosen(run: RunDir, name: str | None) -> pathlib.Path:
    """The checkpoint of that name; `best`, or the newest.

    Raises:
        ConfigError: there is none.
    """
    if name is not None:
        return run.checkpoint_named(name)
    best = run.checkpoints / BEST
    found = best if best.is_dir() else run.latest_checkpoint()
    if found is None:
        raise ConfigError(f"{run.path} has no checkpoint yet: wait for one, or train on")
    return found


def environment_flags(run: pathlib.Path) -> list[str]:
    """What gives LeRobot the environment of a run, see `envs.lerobot_env`; nothing for another's
    environment, for a fine-tuning that played none, or where there is no run."""
    if not (run / CONFIG_FILE).is_file():
        return []
    config = RunDir(run).load_config(object)
    env, usual = config.env, EnvConfig()
    tasks = played_tasks(config) if isinstance(config, FinetuneConfig) else [env.task]
    if env.environment_class is not None or not tasks:
        return []
    named = ("suite", "cameras", "environment_state", "image_size", "episode_length")
    changed = {name: getattr(env, name) for name in (*named, "rendering", "control_mode")}
    changed = {name: v for name, v in changed.items() if v != getattr(usual, name)}
    flags = {"type": "pld_ray", "task": ",".join(tasks), **changed}
    return [f"--env.{name}={str(value).replace(' ', '')}" for name, value in flags.items()]


# --- the hub --------------------------------------------------------------------------------------


def check_login(repository: str) -> None:
    """Refuse what the hub would refuse, before anything is written.

    Raises:
        ConfigError: no name of a repository, or nobody is logged in.
    """
    from huggingface_hub import get_token

    from pld_ray.options.check import HUB_ID

    if not HUB_ID.fullmatch(repository):
        raise ConfigError(f"--push_to={repository}: give the repository as USER/NAME")
    if get_token() is None:
        raise ConfigError(
            f"--push_to={repository} needs a login to the Hugging Face hub that may write there: "
            "run `hf auth login`, or set HF_TOKEN"
        )


def push(folder: pathlib.Path, repository: str) -> None:
    """Upload a policy folder; the repository is made if it is not there.

    Raises:
        ConfigError: the hub cannot be reached, or refuses.
    """
    from huggingface_hub import HfApi

    try:
        api = HfApi()
        made = api.create_repo(repository, exist_ok=True).repo_id
        api.upload_folder(repo_id=made, folder_path=folder, commit_message="Upload policy")
    except Exception as error:  # the hub client's, the HTTP library's or the system's
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{folder} is written, but --push_to={repository} failed ({reason}): try again with "
            f"`hf upload {repository} {shlex.quote(str(folder))}`"
        ) from error
