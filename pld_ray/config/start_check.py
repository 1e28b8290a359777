"""What can be refused before anything that takes time is imported."""

from __future__ import annotations

import pathlib

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.learner import LearnerParams
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.options import check_paths


def check_start(config: TrainConfig, learns: bool = True, resumes: bool = False) -> None:
    """Check that a run's files, folders and task exist; no simulator, Ray or PyTorch is imported.

    Args:
        config: of a run.
        learns: False where a checkpoint only plays, which needs no demonstrations.
        resumes: a run that goes on, whose folder is there.

    Raises:
        ConfigError: naming the setting.
    """
    if learns and isinstance(config, ACRLPDTrainConfig) and not config.demo_path:
        raise ConfigError(
            "pld-ray acrlpd learns from demonstrations first: name a LeRobotDataset with "
            "--demo_path=DIR (pld-ray collect records one)"
        )
    if learns and isinstance(config.algorithm, ResidualSACParams):  # Q-chunking has others
        check_imitated(config)
        check_collected(config)
    check_encoder_weights(config.algorithm)
    try:
        check_paths(config, is_new=learns and not resumes)
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


def check_collected(config: TrainConfig) -> None:
    """Refuse to wait for successes of no base policy, whose action is zero.

    Raises:
        ConfigError: naming the settings.
    """
    wanted, cache = config.algorithm.offline_episodes, config.offline_cache
    if config.policy.type != "none" or not wanted or config.demo_path:
        return
    if config.env.environment_class is not None:  # of one's own, where zeros may succeed
        return
    if cache is not None and any(pathlib.Path(cache).glob("*")):
        return
    raise ConfigError(
        f"algorithm.offline_episodes={wanted} with policy.type=none: nobody collects successes; "
        "set algorithm.offline_episodes=0 (and algorithm.warmup_actions=random), or give "
        "--demo_path"
    )


def check_imitated(config: TrainConfig) -> None:
    """Refuse HG-DAgger where there is nobody to imitate, or an offline replay that is not learnt.

    Raises:
        ConfigError: naming the setting.
    """
    start, algorithm = "algorithm.actor_loss=hg_dagger", config.algorithm
    if algorithm.actor_loss != "hg_dagger":
        return
    if config.intervention.device == "none" and not config.demo_path:
        raise ConfigError(
            f"{start} imitates a person, and there is none: set intervention.device, or name "
            "demonstrations with demo_path"
        )
    if algorithm.offline_episodes and not config.demo_path:
        raise ConfigError(
            f"algorithm.offline_episodes={algorithm.offline_episodes}: must be 0 with {start}, "
            "which imitates a person and not the base policy's successes"
        )
    if config.pretrained_critic is not None:
        raise ConfigError(f"pretrained_critic is of no use with {start}, which asks no critic")
