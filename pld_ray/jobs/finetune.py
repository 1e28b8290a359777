"""`pld-ray finetune`: a LeRobot policy learns from datasets; stopped and resumed without loss."""

from __future__ import annotations

import contextlib
import logging
import pathlib
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from envs.bootstrap import RenderingUnavailableError
from pld_ray.config import ConfigError
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data.dataset import Dataset
from pld_ray.data.training_windows import Needed
from pld_ray.evaluation.play import check_init_states
from pld_ray.files.atomic import undone_unless, write_json_atomically
from pld_ray.jobs.elsewhere import located, start_folder
from pld_ray.jobs.finetune_learner import (
    Advance,
    Inputs,
    check_same_inputs,
    find_inputs,
    finetune_on_cluster,
    learn,
    played_tasks,
    provenance,
)
from pld_ray.jobs.finetune_loop import COMPONENTS
from pld_ray.jobs.learners import check_gpus
from pld_ray.jobs.open_tracker import untracked_unless
from pld_ray.jobs.stop_request import StopRequest
from pld_ray.options import check_paths
from pld_ray.policies.lerobot_names import NamedFeatures
from pld_ray.policies.lerobot_network import load_config
from pld_ray.policies.lerobot_processors import load_processors
from pld_ray.rollout.factory import env_maker, for_evaluation, steps_per_second
from pld_ray.rollout.vector_env import check_policy_matches
from pld_ray.runs.layout import SUMMARY_FILE
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.status import FINISHED, INTERRUPTED
from pld_ray.runs.trust import remember
from pld_ray.sharded.components import POLICY
from pld_ray.sharded.policy_folder import (
    check_frozen,
    check_readable,
    check_same_architecture,
)
from pld_ray.sharded.trainee import check_device, needed_by
from pld_ray.tracking.logfile import close_logging

logger = logging.getLogger(__name__)


def finetune(
    config: FinetuneConfig,
    resume: pathlib.Path | None = None,
    on_samples: Advance = lambda number: None,
) -> dict[str, Any]:
    """Fine-tune, new or from the newest checkpoint of `resume`.

    Args:
        config: of the run; whoever reads it from a folder asks `check_trusted` first.
        resume: folder of the run to continue.
        on_samples: is told the windows of each update.

    Returns:
        The content of `summary.json`; without `policy` when the run was interrupted.

    Raises:
        ConfigError: something in the configuration cannot work.
        RunError: a checkpoint cannot be written, or base policy or a dataset is not as the resumed
            run began with it.
    """
    if resume is None:
        config = located(config, start_folder())
    run = RunDir(resume or config.output_dir)
    if resume is None:
        run.check_new()
        remember([config])
    inputs = check_finetune(config)
    if newest := run.latest_checkpoint():
        check_same_architecture(inputs.checkpoint, newest / COMPONENTS / POLICY)
        check_same_inputs(run, provenance(config, *inputs))
    with undone_unless(run.path, lambda: resume is not None or run.has_begun):
        try:
            with run.disk_errors(), run.work():
                if config.learners.num_learners > 0:
                    with untracked_unless(run, lambda: resume is not None or run.has_begun):
                        summary = finetune_on_cluster(config, run, resume is not None, on_samples)
                else:
                    summary = learn(
                        config, run, resume is not None, inputs, on_samples, StopRequest()
                    )
                if "policy" in summary:
                    write_json_atomically(run.path / SUMMARY_FILE, summary)
                run.set_status(FINISHED if "policy" in summary else INTERRUPTED)
                return summary
        finally:
            close_logging()


def check_finetune(config: FinetuneConfig) -> Inputs:
    """Open policy, datasets and, where they are played, the tasks, here where an error can be read.

    Raises:
        ConfigError: naming what cannot be used.
    """
    if not config.dataset:
        raise ConfigError("pld-ray finetune learns from LeRobotDatasets: name one or more")
    try:
        check_paths(config)
        check_gpus(config)
        check_device(config)
        inputs = find_inputs(config)
        check_readable(inputs.checkpoint)
        check_frozen(inputs.checkpoint, config.algorithm.freeze)
        if config.learners.num_learners == 0:  # else its tokeniser may be where they are alone
            described = load_config(inputs.checkpoint, "cpu", None)
            load_processors(inputs.checkpoint, described, "cpu", config.policy.tokenizer_path)
        check_played(
            config,
            needed_by(inputs.checkpoint, config.policy.rename_map),
            {episode.dataset for episode in inputs.episodes},
        )
    except (ValueError, OSError, ImportError, RenderingUnavailableError) as error:
        raise ConfigError(str(error)) from error
    return inputs


def check_played(config: FinetuneConfig, needed: Needed, datasets: Iterable[Dataset]) -> None:
    """Refuse tasks that the policy could not be played in; another rate than it has learnt at is
    warned of.

    Args:
        config: whose tasks are played while it learns, if any.
        needed: what the policy reads.
        datasets: what it learns from.

    Raises:
        ConfigError: naming what the environment lacks, or has in another shape.
    """
    features = NamedFeatures(needed.shapes, needed.names)
    player: Any = SimpleNamespace(action_dim=needed.action_dim, input_features=features)
    for task in played_tasks(config):
        settings = {**config.env.settings(), "task": task}
        made: Any = env_maker(for_evaluation(settings))()
        with contextlib.closing(made) as env:
            spaces = env.observation_space, env.action_space
            check_init_states(config, env, task)
        try:
            check_policy_matches(player, *spaces)
        except ValueError as error:
            raise ConfigError(f"evaluation.validation_states plays {task}: {error}") from error
        rate = steps_per_second(settings)
        for dataset in datasets:
            if rate is not None and dataset.fps != rate:
                logger.warning(
                    "evaluation.validation_states plays %s at %g steps per second, and %s says %g "
                    "frames per second: unless that is only its label, an action means another "
                    "movement there", task, rate, dataset.root, dataset.fps,
                )  # fmt: skip
