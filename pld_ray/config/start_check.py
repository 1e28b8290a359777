"""What can be refused before anything that takes time is imported."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.learner import LearnerParams
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.options import check_paths


def check_start(config: TrainConfig, learns: bool = True) -> None:
    """Check that a run's files, folders and task exist; no simulator, Ray or PyTorch is imported.

    Args:
        config: of a run.
        learns: False where a checkpoint only plays, which needs no demonstrations.

    Raises:
        ConfigError: naming the setting.
    """
    if learns and isinstance(config, ACRLPDTrainConfig) and not config.demo_path:
        raise ConfigError(
            "pld-ray acrlpd learns from demonstrations first: name a LeRobotDataset with "
            "--demo_path=DIR (pld-ray collect records one)"
        )
    if learns and isinstance(config.algorithm, ResidualSACParams):  # Q-chunking has others
        check_imitated(
            config.algorithm, config.intervention.device, config.demo_path, config.pretrained_critic
        )
        if config.env.environment_class is None and not holds_something(config.offline_cache):
            check_collected(config.algorithm, config.policy.type, config.demo_path)
    check_encoder_weights(config.algorithm)
    try:
        check_paths(config)
        if config.env.environment_class is None:
            from envs.suites import find_task

            find_task(config.env.suite, config.env.task)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error


def check_encoder_weights(params: LearnerParams) -> None:
    """Refuse weights of the vision encoder that are not there: a file, or a policy's folder.

    Raises:
        ConfigError: naming the setting and the path.
    """
    if (weights := params.vision_encoder_weights) is None:
        return
    start, path = f"algorithm.vision_encoder_weights={weights}", pathlib.Path(weights)
    if params.vision_encoder_name != "policy":
        if not path.is_file():
            raise ConfigError(f"{start}: no such file")
    elif not path.expanduser().is_dir():
        raise ConfigError(f"{start}: no such folder; vision_encoder_name=policy reads the policy's")


def holds_something(cache: str | None) -> bool:
    """Whether a folder of collected data is there and not empty."""
    return cache is not None and any(pathlib.Path(cache).glob("*"))


def check_collected(params: ResidualSACParams, policy_type: str, demo_path: Sequence[str]) -> None:
    """Refuse to wait for successes of no base policy, whose action is zero. Not to be asked of an
    environment of one's own, where zeros may succeed, nor with a cache that has them.

    Raises:
        ConfigError: naming the settings.
    """
    if policy_type == "none" and params.offline_episodes and not demo_path:
        raise ConfigError(
            f"algorithm.offline_episodes={params.offline_episodes} with policy.type=none: nobody "
            "collects successes; set algorithm.offline_episodes=0 (and "
            "algorithm.warmup_actions=random), or give demo_path"
        )


def check_imitated(
    params: ResidualSACParams, device: str, demo_path: Sequence[str], pretrained_critic: str | None
) -> None:
    """Refuse HG-DAgger where there is nobody to imitate, or an offline replay that is not learnt.

    Args:
        params: of the algorithm.
        device: by which a person intervenes, or `none`.
        demo_path: datasets.
        pretrained_critic: a checkpoint's folder.

    Raises:
        ConfigError: naming the setting.
    """
    start = "algorithm.actor_loss=hg_dagger"
    if params.actor_loss != "hg_dagger":
        return
    if device == "none" and not demo_path:
        raise ConfigError(
            f"{start} imitates a person, and there is none: set intervention.device, or name "
            "demonstrations with demo_path"
        )
    if params.offline_episodes and not demo_path:
        raise ConfigError(
            f"algorithm.offline_episodes={params.offline_episodes}: must be 0 with {start}, "
            "which imitates a person and not the base policy's successes"
        )
    if pretrained_critic is not None:
        raise ConfigError(f"pretrained_critic is of no use with {start}, which asks no critic")
