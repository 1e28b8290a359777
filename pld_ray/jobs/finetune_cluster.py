"""Fine-tuning by several processes under Ray Train: started, watched, stopped, started again."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import threading
from types import TracebackType
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from pld_ray.config import ConfigError
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.errors import user_error
from pld_ray.jobs.cluster import check_cluster, learner_resources, quiet_ray, start_ray
from pld_ray.jobs.finetune_learner import Advance, find_inputs, learn
from pld_ray.jobs.stop_request import StopRequest
from pld_ray.runs.journal import read_history
from pld_ray.runs.layout import METRICS_FILE, RAY_TRAIN, STOP_FILE
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.sharded.ranks import Ranks

COLLECTIVE_TIMEOUT_S = 6 * 3600
"""The others wait while the first rank plays and writes; Ray sees at once that one has died."""
WATCH_S = 0.5
FAILURE = "failure"
"""What a learner returns in place of a summary: why the run cannot go on."""
VARIABLES = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # paths of the configuration are relative to where it started
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
}


class StopFile:
    """A request to stop that reaches the learners through the run's folder."""

    def __init__(self, run: RunDir, ranks: Ranks) -> None:
        self.path, self.ranks = run.path / STOP_FILE, ranks

    def __enter__(self) -> StopFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    @property
    def requested(self) -> bool:
        """Whether the file is there; what the first rank sees holds for all."""
        return self.ranks.share(self.ranks.first and self.path.exists())


def check_gpus(config: FinetuneConfig) -> None:
    """Refuse more learners than there are GPUs for, before Ray starts on this machine.

    Raises:
        ConfigError: naming both numbers.
    """
    learners = config.learners
    elsewhere = config.ray_address or os.environ.get("RAY_ADDRESS")
    if elsewhere or not learners.num_gpus_per_learner:
        return
    fewest, there = learners.min_learners or learners.num_learners, torch.cuda.device_count()
    if fewest * learners.num_gpus_per_learner > there:
        raise ConfigError(
            f"{fewest} learners with learners.num_gpus_per_learner="
            f"{learners.num_gpus_per_learner:g} need more GPUs than the {there} of this machine: "
            "lower learners.num_learners, set learners.num_gpus_per_learner=0, or join a cluster "
            "with --ray_address"
        )


def finetune_on_cluster(
    config: FinetuneConfig, run: RunDir, resumes: bool, on_samples: Advance
) -> dict[str, Any]:
    """`learn` on each of the learners, started anew from the last checkpoint when one is lost.

    Raises:
        ConfigError: no cluster answers, or it has no room for them.
        RunError: learners were lost more often than `max_failures`, or a checkpoint cannot be
            written.
    """
    config = for_learners(config)
    if not resumes:
        run.create(config)
    shutil.rmtree(run.path / RAY_TRAIN, ignore_errors=True)
    (run.path / STOP_FILE).unlink(missing_ok=True)
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    own_ray = start_ray(config)
    quiet_ray()
    try:
        check_cluster(config)
        return watched(make_trainer(config, run, resumes), config, run, on_samples)
    finally:
        (run.path / STOP_FILE).unlink(missing_ok=True)
        shutil.rmtree(run.path / RAY_TRAIN, ignore_errors=True)
        if own_ray:
            ray.shutdown()


def make_trainer(config: FinetuneConfig, run: RunDir, resumes: bool) -> TorchTrainer:
    """Ray Train around `learner`."""
    learners = config.learners
    number: int | tuple[int, int] = learners.num_learners
    if learners.min_learners not in (None, learners.num_learners):
        number = (learners.min_learners or 1, learners.num_learners)
    return TorchTrainer(
        learner,
        train_loop_config={"config": config, "folder": str(run.path), "resumes": resumes},
        torch_config=TorchConfig(timeout_s=COLLECTIVE_TIMEOUT_S),
        scaling_config=ScalingConfig(
            num_workers=number,
            use_gpu=learners.num_gpus_per_learner > 0,
            resources_per_worker=learner_resources(config),
        ),
        run_config=RunConfig(
            name=RAY_TRAIN,
            storage_path=str(run.path),
            failure_config=FailureConfig(max_failures=config.max_failures),
        ),
    )


def learner(given: dict[str, Any]) -> dict[str, Any]:
    """What each worker of Ray Train runs, from the beginning or from the newest checkpoint."""
    context = ray.train.get_context()
    config: FinetuneConfig = given["config"]
    number = context.get_world_size()
    ranks = Ranks(context.get_world_rank(), number, config.learners.num_learners)
    torch.set_num_threads(1)
    run = RunDir(given["folder"])
    if ranks.first:
        run.sweep_leftovers()
    begun = ranks.share(ranks.first and run.has_begun)
    resumes = given["resumes"] or begun
    stop = StopFile(run, ranks)
    try:
        return learn(config, run, resumes, find_inputs(config), lambda _: None, stop, ranks)
    except RunError as error:  # of all ranks; to start them again would not make room on the disk
        return {FAILURE: str(error)}


def watched(
    trainer: TorchTrainer, config: FinetuneConfig, run: RunDir, on_samples: Advance
) -> dict[str, Any]:
    """Wait for the trainer; pass on how far it is, and a request to stop."""
    ended: dict[str, Any] = {}

    def fit() -> None:
        try:
            ended["summary"] = trainer.fit().return_value
        except BaseException as error:
            ended["error"] = error

    # Ray Train would take Ctrl-C in the main thread
    thread = threading.Thread(target=fit, daemon=True)
    told = 0
    with StopRequest() as stop:
        thread.start()
        while thread.is_alive():
            thread.join(WATCH_S)
            if stop.requested:
                (run.path / STOP_FILE).touch()
            if (updates := recorded_updates(run)) > told:
                on_samples((updates - told) * config.algorithm.batch_size)
                told = updates
    if error := ended.get("error"):
        raise reason_of(error, run) from error
    if failure := ended["summary"].get(FAILURE):
        raise RunError(failure)
    return ended["summary"]


def recorded_updates(run: RunDir) -> int:
    """Updates of the journal's last row."""
    with contextlib.suppress(OSError, ValueError):
        rows = read_history(run.path / METRICS_FILE)
        return int(rows[-1].get("updates", 0)) if rows else 0
    return 0


def reason_of(error: BaseException, run: RunDir) -> BaseException:
    """A user's mistake as it was, anything else as a run that can be resumed."""
    if not isinstance(error, TrainingFailedError):
        return error
    failures = getattr(error, "worker_failures", {}).values()
    causes = [getattr(failure, "_base_exc", failure) for failure in failures]
    for cause in causes:
        if found := user_error(cause):
            return found
    last = next((str(cause).strip().splitlines()[-1] for cause in causes if str(cause)), str(error))
    return RunError(
        f"the learners failed ({last.strip()[:300]}); {run.path}/train.log says more. Continue "
        f"with --resume={run.path}"
    )


def for_learners(config: FinetuneConfig) -> FinetuneConfig:
    """With paths that hold where the command was not typed, and the device that they were given."""

    def absolute(path: str | None) -> str | None:
        return str(pathlib.Path(path).resolve()) if path and pathlib.Path(path).exists() else path

    policy = dataclasses.replace(
        config.policy,
        path=absolute(config.policy.path),
        tokenizer_path=absolute(config.policy.tokenizer_path),
    )
    datasets = [absolute(path) or path for path in config.dataset]
    device: Any = "cuda" if config.learners.num_gpus_per_learner else "cpu"
    return dataclasses.replace(config, policy=policy, dataset=datasets, device=device)
