"""What can be refused before anything that takes time is imported."""

from __future__ import annotations

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
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
    try:
        check_paths(config)
        if config.env.entry_point is None:
            from envs.suites import find_task

            find_task(config.env.suite, config.env.task)
    except (ValueError, ImportError) as error:
        raise ConfigError(str(error)) from error
