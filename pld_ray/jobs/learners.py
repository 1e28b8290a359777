"""Processes that train together under Ray Train: started, watched, stopped, started again."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pkgutil
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import ray
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from pld_ray.algorithm.nonfinite import NonFiniteTrainingError
from pld_ray.config import ConfigError
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.config.groups import RunnersConfig
from pld_ray.errors import user_error
from pld_ray.files.lock import this_process
from pld_ray.files.manifest import sha256
from pld_ray.jobs.cluster import (
    check_cluster,
    learner_demands,
    learner_resources,
    quiet_ray,
    running_ray,
)
from pld_ray.jobs.elsewhere import other_cluster
from pld_ray.jobs.stop_request import StopRequest
from pld_ray.runs.journal import read_history
from pld_ray.runs.layout import CONFIG_FILE, METRICS_FILE, RAY_TRAIN, STOP_FILE, resuming
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.sharded.ranks import Ranks

Config = FinetuneConfig | ACRLPDTrainConfig
Rank = Callable[[dict[str, Any]], Any]
"""What a learner runs; it is given `config`, `folder`, whether the run `resumes`, `driver`, and
`written`, the checksum of the folder's `config.yaml`."""

COLLECTIVE_TIMEOUT_S = 6 * 3600
"""The others wait while the first rank plays and writes; Ray sees at once that one has died."""
WATCH_S = 0.5
FAILURE = "failure"
"""What a learner returns in place of a result: why the run cannot go on."""
VARIABLES = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # paths of the configuration are relative to where it started
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
START_TIMEOUT_S, ELASTIC_START_TIMEOUT_S = 600, 30
"""Ray Train waits so long for the resources of all learners, then looks again. Where fewer may do
it asks for as many as it believes to be there, and believes in a node for 20 s after its death."""


class StopFile:
    """A request to stop that reaches the learners through the run's folder."""

    def __init__(self, run: RunDir, ranks: Ranks) -> None:
        self.path, self.ranks = run.path / STOP_FILE, ranks

    def __enter__(self) -> StopFile:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def requested(self) -> bool:
        """Whether the file is there; what the first rank sees holds for all."""
        return self.ranks.share(self.ranks.first and self.path.exists())


def check_gpus(config: Config) -> None:
    """Refuse more learners than there are GPUs for, before Ray starts on this machine.

    Raises:
        ConfigError: naming both numbers.
    """
    learners = config.learners
    if other_cluster(config) or not learners.num_gpus_per_learner:
        return
    fewest, there = learners.min_learners or learners.num_learners, torch.cuda.device_count()
    if fewest * learners.num_gpus_per_learner > there:
        raise ConfigError(
            f"{fewest} learners with learners.num_gpus_per_learner="
            f"{learners.num_gpus_per_learner:g} need more GPUs than the {there} of this machine: "
            "lower learners.num_learners, set learners.num_gpus_per_learner=0, or join a cluster "
            "with --ray_address"
        )


def check_own_gpu(runners: RunnersConfig) -> None:
    """Refuse a learner of this process on a GPU that is not there.

    Raises:
        ConfigError: naming the key, and what else there is.
    """
    if runners.num_learners or not runners.num_gpus_per_learner or torch.cuda.device_count():
        return
    raise ConfigError(
        f"runners.num_gpus_per_learner={runners.num_gpus_per_learner:g}: with "
        "runners.num_learners=0 this process learns, and PyTorch finds no GPU here; set it to 0 "
        "(a run goes on with --resume=RUN --runners.num_gpus_per_learner=0), or let another "
        "machine learn (runners.num_learners=1, --ray_address)"
    )


def train_together(
    config: Config,
    run: RunDir,
    resumes: bool,
    rank: Rank,
    on_updates: Callable[[int], None],
) -> Any:
    """`rank` on each of the learners, started anew from the last checkpoint when one is lost.

    Args:
        config: of the run.
        run: its folder, where a configuration lies already.
        resumes: from a checkpoint, or the run begins.
        rank: see `Rank`.
        on_updates: is told the updates of the journal's last row.

    Returns:
        What the first of them returned.

    Raises:
        ConfigError: no cluster answers, or it has no room for them.
        RunError: learners were lost more often than `max_failures`, or a checkpoint cannot be
            written.
    """
    shutil.rmtree(run.path / RAY_TRAIN, ignore_errors=True)
    (run.path / STOP_FILE).unlink(missing_ok=True)
    asked = learner_demands(config)
    with variables(is_elastic(config)), running_ray(config, asked=asked):
        quiet_ray()
        try:
            check_cluster(config, asked)
            return watched(make_trainer(config, run, resumes, rank), run, on_updates)
        finally:
            (run.path / STOP_FILE).unlink(missing_ok=True)
            shutil.rmtree(run.path / RAY_TRAIN, ignore_errors=True)


def is_elastic(config: Config) -> bool:
    """Whether fewer learners may go on where some were lost."""
    return config.learners.min_learners not in (None, config.learners.num_learners)


@contextlib.contextmanager
def variables(elastic: bool) -> Iterator[None]:
    """What Ray Train takes from this process's environment; what the user has set stays."""
    timeout = ELASTIC_START_TIMEOUT_S if elastic else START_TIMEOUT_S
    wanted = {**VARIABLES, START_TIMEOUT: str(timeout)}
    own = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(own)
    try:
        yield
    finally:
        for name in own:
            del os.environ[name]


def make_trainer(config: Config, run: RunDir, resumes: bool, rank: Rank) -> TorchTrainer:
    """Ray Train around `rank`."""
    learners = config.learners
    number: int | tuple[int, int] = learners.num_learners
    if is_elastic(config):
        number = (learners.min_learners or 1, learners.num_learners)
    return TorchTrainer(
        run_rank,
        train_loop_config={
            # by name: Ray Train's controller need not import LeRobot
            "rank": f"{rank.__module__}:{rank.__qualname__}",
            "config": config,
            "folder": str(run.path),
            "resumes": resumes,
            "driver": this_process(),  # it holds the folder
            "written": sha256(run.path / CONFIG_FILE),
        },
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


def run_rank(given: dict[str, Any]) -> Any:
    """A rank's result, or why there will be none."""
    rank: Rank = pkgutil.resolve_name(given["rank"])
    try:
        return rank(given)
    except (RunError, NonFiniteTrainingError) as error:  # of all ranks; it would only come again
        return {FAILURE: str(error)}


def this_rank(config: Config) -> Ranks:
    """The process of Ray Train that asks."""
    context = ray.train.get_context()
    torch.set_num_threads(1)
    number = context.get_world_size()
    return Ranks(context.get_world_rank(), number, config.learners.num_learners)


def begin_rank(run: RunDir, ranks: Ranks, given: dict[str, Any]) -> bool:
    """Clear up what a process that was killed has left; whether to go on from a checkpoint.

    Raises:
        RunError: not all see the driver's folder; on every rank.
    """
    sees = is_written(run.path / CONFIG_FILE, given["written"])
    if blind := sorted(set(filter(None, ranks.gather(None if sees else socket.gethostname())))):
        raise RunError(
            f"{run.path} on {', '.join(blind)} is not the run's folder, and what its learners "
            "write there would be found by nobody: output_dir must lie on storage that all nodes "
            "share, under the same path"
        )
    if ranks.first:
        run.sweep_leftovers()
    return ranks.share(given["resumes"] or (ranks.first and run.has_begun))


def first_writes(run: RunDir, ranks: Ranks, write: Callable[[], object]) -> None:
    """Let the first rank write what it alone writes; all call this in the same order.

    Raises:
        RunError: the disk refuses it; on every rank, as another try would find the same disk.
    """
    error = None
    if ranks.first:
        try:
            with run.disk_errors():
                write()
        except RunError as found:
            error = found
    if shared := ranks.share(error):
        raise shared


def is_written(path: pathlib.Path, checksum: str) -> bool:
    """Whether a file is there and has this SHA-256."""
    try:
        return sha256(path) == checksum
    except OSError:
        return False


def watched(trainer: TorchTrainer, run: RunDir, on_updates: Callable[[int], None]) -> Any:
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
                on_updates(updates)
                told = updates
    if error := ended.get("error"):
        raise reason_of(error, run) from error
    summary = ended["summary"]
    if isinstance(summary, dict) and FAILURE in summary:
        raise RunError(summary[FAILURE])
    return summary


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
        f"with {resuming(run.path)}"
    )
