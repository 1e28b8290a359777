"""The offline updates of `pld-ray acrlpd` by several learners, who leave the checkpoint of one."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID

from pld_ray.algorithm.residual.schedules import ResidualScaleSchedule
from pld_ray.config import TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.data.demonstrations import Wanted
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.manifest import add_to_manifest, write_manifest
from pld_ray.jobs.build import open_environment
from pld_ray.jobs.learners import StopFile, begin_rank, first_writes, this_rank, train_together
from pld_ray.jobs.loop_state import LoopState, load_first, loop_state
from pld_ray.jobs.open_tracker import open_tracker, told_of_end
from pld_ray.jobs.result_metrics import LEARNER_KEYS
from pld_ray.options import with_absolute_paths
from pld_ray.policies.no_policy import NoBasePolicy
from pld_ray.rllib.chunked.config import ACRLPDConfig
from pld_ray.rllib.chunked.env_runner import NO_RESIDUAL
from pld_ray.rllib.chunked.offline import OfflineData
from pld_ray.rllib.learner import CHECKPOINTED
from pld_ray.rllib.of_run import algorithm_config
from pld_ray.rllib.progress import Progress, read_progress
from pld_ray.rollout.factory import task_instructions, wanted_of
from pld_ray.rollout.vector_env import check_policy_matches, with_base_policy
from pld_ray.runs.journal import log_line
from pld_ray.runs.layout import PROGRESS_FILE, TRAINER_FILE, read_json
from pld_ray.runs.run_dir import RunDir
from pld_ray.sharded.ranks import Ranks
from pld_ray.tracking.logfile import setup_logging
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.progress import TrainProgress

CHECKPOINTS = "offline_*"
"""Names of checkpoints of this stage, see `checkpoint_name`."""
RECORD_UPDATES = 50


def is_due(config: TrainConfig, run: RunDir) -> bool:
    """Whether several learners have updates to make before the run goes on in one process."""
    if not isinstance(config, ACRLPDTrainConfig) or not config.learners.num_learners:
        return False
    newest = run.latest_checkpoint()
    if newest is None:
        return True
    progress = read_json(newest / PROGRESS_FILE)
    done = progress.get("offline_done", 0) >= config.algorithm.offline_updates
    return progress.get("phase") in ("collect", "offline") and not done


def checkpoint_due(config: TrainConfig, progress: Progress, before: int) -> bool:
    """Whether one process that makes the offline updates has come to a checkpoint, or to their end.

    Args:
        config: of the run.
        progress: after an iteration.
        before: offline updates when it began.
    """
    if not isinstance(config, ACRLPDTrainConfig) or progress.offline_done <= before:
        return False
    return progress.phase == "online" or not (
        progress.offline_done % config.learners.checkpoint_updates
    )


def checkpoint_name(updates: int) -> str:
    """Of a checkpoint of this stage, by whomever it was made."""
    return f"offline_{updates:09d}"


def note_state(checkpoint: pathlib.Path, state: LoopState) -> None:
    """Write into a checkpoint what the loop has found out since, with nothing learnt meanwhile."""
    write_json_atomically(checkpoint / TRAINER_FILE, asdict(state))
    add_to_manifest(checkpoint, TRAINER_FILE)


def learn_offline(config: ACRLPDTrainConfig, run: RunDir, resumes: bool) -> bool:
    """Make the offline updates; False when a stop was requested before their end.

    Args:
        config: of the run.
        run: its folder, which is this process's.
        resumes: the folder holds the run already.

    Raises:
        ConfigError, RunError: see `train_together`.
    """
    if not resumes:
        run.create(config)
    done = read_json((run.latest_checkpoint() or run.path) / PROGRESS_FILE).get("updates", 0)
    with TrainProgress(config.total_steps, env_steps=0, updates=done) as progress:
        progress.update(phase="offline")

        def on_updates(updates: int) -> None:
            progress.update(phase="offline", updates=updates)

        # paths that hold where the command was not typed
        config = with_absolute_paths(config, pathlib.Path.cwd())
        return bool(train_together(config, run, resumes, learner, on_updates))


# --- in each learner ------------------------------------------------------------------------------


def learner(given: dict[str, Any]) -> bool:
    """What each worker of Ray Train runs; whether all updates were made."""
    config: ACRLPDTrainConfig = given["config"]
    run, ranks = RunDir(given["folder"]), this_rank(config)
    resumes = begin_rank(run, ranks, given)
    logger = setup_logging(run.path) if ranks.first else logging.getLogger(__name__)
    tracker = open_tracker(config, run, driver=given["driver"]) if ranks.first else None
    with told_of_end(tracker, logger) as end:
        stage = OfflineStage(config, run, ranks, tracker, logger)
        stage.begin(resumes)
        finished = stage.run(StopFile(run, ranks))
        end.status = "FINISHED" if finished else "KILLED"
    return finished


class Environment(NamedTuple):
    """What the datasets must hold, and the task, in words; see `Describing`."""

    wanted: Wanted
    task: str
    spaces: tuple[Any, Any]

    def describe_environment(self) -> tuple[Wanted, str]:
        """What a runner would say."""
        return self.wanted, self.task


def look_at_environment(config: ACRLPDTrainConfig, algorithm: ACRLPDConfig) -> Environment:
    """Open the run's environment, which nothing is played in here."""
    with contextlib.closing(open_environment(config)) as env:
        policy = NoBasePolicy(env.action_space.shape[0])
        spaces = env.observation_space, env.action_space
    observations, actions = check_policy_matches(policy, *spaces)
    env_config = config.env.settings()
    wanted = wanted_of(observations, actions, algorithm.cameras(observations), env_config)
    (task,) = task_instructions(env_config)
    spaces = with_base_policy(policy, observations, actions), actions
    return Environment(wanted, task, spaces)


class OfflineStage:
    """read the datasets, or a checkpoint -> update -> record -> checkpoint when due.

    Args:
        config: of the run, with whole paths.
        run: its folder, which the driver has locked; the first rank writes into it.
        ranks: this process among all.
        tracker, logger: of the first rank.
    """

    def __init__(
        self,
        config: ACRLPDTrainConfig,
        run: RunDir,
        ranks: Ranks,
        tracker: MlflowRun | None,
        logger: logging.Logger,
    ) -> None:
        # FSDP takes two seconds to import, and every `pld-ray train` imports this file
        from pld_ray.rllib.chunked.sharded_learner import ShardedACRLPDLearner
        from pld_ray.sharded.shards import Sharding

        self.config, self.run_dir, self.ranks = config, run, ranks
        self.tracker, self.logger = tracker, logger
        learners = config.learners
        built: Any = algorithm_config(config)
        self.algorithm: ACRLPDConfig = built.learners(
            num_learners=0, num_gpus_per_learner=learners.num_gpus_per_learner
        )
        self.environment = look_at_environment(config, self.algorithm)
        spec = self.algorithm.get_multi_rl_module_spec(
            spaces={DEFAULT_MODULE_ID: self.environment.spaces}
        )
        device = "cuda" if learners.num_gpus_per_learner else "cpu"
        sharding = Sharding(ranks, learners, device) if ranks.number > 1 else None
        self.learner = ShardedACRLPDLearner(
            ranks, sharding, config=self.algorithm, module_spec=spec
        )
        self.learner.build()
        schedule = ResidualScaleSchedule(NO_RESIDUAL)
        self.progress = Progress(schedule, self.algorithm.utd, self.algorithm.max_staleness)
        self.state = LoopState.begin(config)
        self._collected: dict[str, list[float]] = {}

    def begin(self, resumes: bool) -> None:
        """Go on from the newest checkpoint that is whole, or read the datasets."""
        restored = resumes and self._restore()
        if not restored:
            OfflineData(self.algorithm, self.learner, self.environment).step()
            self.progress.phase = "offline"
        if resumes:
            first_writes(self.run_dir, self.ranks, lambda: self._go_back(restored))

    def _go_back(self, restored: bool) -> None:
        self.run_dir.journal.restore(0 if restored else -1, self.progress.updates)
        if self.tracker is not None:
            self.tracker.restored(0)

    def _restore(self) -> bool:
        def load(path: pathlib.Path) -> None:
            state = read_progress(path)
            self.learner.load(str(path))
            self.state = loop_state(path, LoopState)
            self.progress.restore(state)

        found = self.ranks.share(self.run_dir.find_checkpoints())
        return load_first(found, load, self.logger) is not None

    def run(self, stop: StopFile) -> bool:
        """Make the updates; False when a stop was requested."""
        progress, wanted = self.progress, self.config.algorithm.offline_updates
        failure_dir = str(self.run_dir.path) if self.ranks.first else None
        while progress.offline_done < wanted and not stop.requested:
            clock = time.monotonic()
            for name, value in self.learner.train(1, failure_dir=failure_dir).items():
                self._collected.setdefault(name, []).append(value)
            self.state.train_wall_s += time.monotonic() - clock
            progress.offline_done += 1
            progress.updates += 1
            if progress.updates % RECORD_UPDATES == 0 or progress.offline_done == wanted:
                self.record()
            if progress.updates % self.config.learners.checkpoint_updates == 0:
                self.save()
        self.save()
        return progress.offline_done >= wanted

    def record(self) -> None:
        """A row of the journal: means over the updates since the last one, and over all ranks."""
        means = {name: float(np.mean(values)) for name, values in self._collected.items()}
        self._collected = {}
        of_ranks = self.ranks.gather(means)
        first_writes(self.run_dir, self.ranks, lambda: self._append(of_ranks))

    def _append(self, of_ranks: Sequence[Mapping[str, float]]) -> None:
        row: dict[str, Any] = {"env_steps": 0, "train/success_rate": None}
        for name in LEARNER_KEYS:
            if found := [one[name] for one in of_ranks if name in one]:
                row[f"learner/{name}"] = float(np.mean(found))
        stored = self.learner.stored()
        row |= {
            "replay/online": stored.online,
            "replay/offline": stored.offline,
            "updates": self.progress.updates,
            "residual_scale": self.progress.residual_scale,
            "time/wall_s": round(self.state.train_wall_s, 2),
        }
        self.logger.info(log_line(self.run_dir.journal.append(row)))

    def save(self) -> None:
        """A checkpoint as one learner writes it; all ranks give their parts."""
        whole = self.learner.get_state(components=CHECKPOINTED)
        first_writes(self.run_dir, self.ranks, lambda: self._save(whole))

    def _save(self, learner: dict[str, Any]) -> None:
        name = checkpoint_name(self.progress.updates)
        # due dates of the run that goes on from it are in environment steps
        begun = LoopState.begin(self.config)
        state = dataclasses.replace(begun, train_wall_s=self.state.train_wall_s)

        def write(folder: str) -> None:
            self.learner.save(folder, learner)
            self.progress.save(pathlib.Path(folder))
            write_manifest(pathlib.Path(folder))

        path = self.run_dir.save_checkpoint(write, name, asdict(state))
        self.run_dir.prune(self.config.checkpoint.keep, CHECKPOINTS)
        self.logger.info("checkpoint %s at %d updates", path, self.progress.updates)
