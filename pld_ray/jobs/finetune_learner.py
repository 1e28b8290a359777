"""Who fine-tunes: one process alone, or several that train together under Ray Train."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from pld_ray.config import ConfigError
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.data.demonstrations import identity_of
from pld_ray.data.training_windows import Episode, TrainingWindows, find_episodes, hold_out
from pld_ray.evaluation.policy_player import PolicyPlayer
from pld_ray.files.lock import Owner
from pld_ray.jobs.checkpoint_writer import CheckpointWriter
from pld_ray.jobs.finetune_loop import FinetuneLoop, Stop
from pld_ray.jobs.learners import StopFile, begin_rank, first_writes, this_rank, train_together
from pld_ray.jobs.open_tracker import open_tracker, told_of_end
from pld_ray.options import with_absolute_paths
from pld_ray.policies.checkpoint import PolicyCheckpoint
from pld_ray.runs.layout import POLICY_FOLDER, PROGRESS_FILE, read_json
from pld_ray.runs.reading import wall_before
from pld_ray.runs.run_dir import RunDir, RunError
from pld_ray.sharded.policy_folder import PROVENANCE_FILE
from pld_ray.sharded.ranks import ALONE, Ranks
from pld_ray.sharded.shards import Sharding
from pld_ray.sharded.trainee import (
    check_sizes,
    device_of,
    load_trainee,
    needed_by,
    open_trainee,
    rounding_warning,
)
from pld_ray.sharded.trainer import Trainer
from pld_ray.tracking.logfile import setup_logging
from pld_ray.tracking.tags import version

Advance = Callable[[int], None]


class Inputs(NamedTuple):
    """What a run learns from: the policy's folder, and the episodes, learnt from or held out."""

    checkpoint: PolicyCheckpoint
    episodes: list[Episode]


def find_inputs(config: FinetuneConfig) -> Inputs:
    """Open policy and datasets; no weight is read.

    Raises:
        ConfigError, ValueError, OSError: one cannot be used.
    """
    checkpoint = open_trainee(config)
    needed = needed_by(checkpoint, config.policy.rename_map)
    episodes = find_episodes(config.dataset, needed, config.episodes == "successes")
    check_sizes(checkpoint, needed, episodes[0].dataset)
    return Inputs(checkpoint, episodes)


def played_tasks(config: FinetuneConfig) -> list[str]:
    """Tasks that are played while the policy learns."""
    if config.evaluation.validation_states == 0:
        return []
    return config.evaluation.tasks or [config.env.task]


def learn(
    config: FinetuneConfig,
    run: RunDir,
    resumes: bool,
    inputs: Inputs,
    on_samples: Advance,
    stop: Stop,
    ranks: Ranks = ALONE,
    driver: Owner | None = None,
) -> dict[str, Any]:
    """Train to the end, or until it is stopped.

    Args:
        config: of the run.
        run: its folder, which is this process's or its driver's.
        resumes: from the newest checkpoint, or the run begins.
        inputs: see `find_inputs`.
        on_samples: is told the windows of each update.
        stop: asked after each update; all ranks get the same answer.
        ranks: this process among those that train together. The first one records, plays, logs
            and writes.
        driver: the process whose folder it is, where that is another one.

    Returns:
        The content of `summary.json`, without `policy` where it was stopped; the first rank's.

    Raises:
        RunError: a checkpoint cannot be written, or base policy or a dataset is not as the run
            began with it; on every rank.
        ConfigError: the policy cannot be loaded; on every rank.
    """
    started = time.time() - (wall_before(run.path) if resumes else 0.0)
    logger = setup_logging(run.path) if ranks.first else logging.getLogger(__name__)
    tracker = open_tracker(config, run, kind="finetune", driver=driver) if ranks.first else None
    player = None
    try:
        with (
            told_of_end(tracker, logger, lambda: resumes or bool(driver) or run.has_begun) as end,
            CheckpointWriter(ranks) as writer,
        ):
            about = provenance(config, *inputs)
            if resumes:
                check_same_inputs(run, about)
            try:
                trainee = load_trainee(config)
            except (ValueError, OSError) as error:
                raise ConfigError(str(error)) from error
            if ranks.first and (warning := rounding_warning(trainee.policy)):
                logger.warning(warning)
            train, held = hold_out(inputs.episodes, config.evaluation.held_out_share, config.seed)
            windows = TrainingWindows(train, trainee.needed, config.dataset_weights, config.seed)
            held_windows = TrainingWindows(held, trainee.needed) if held else None
            if ranks.first and (tasks := played_tasks(config)):
                player = PolicyPlayer(config.env, tasks)
            several = ranks.number > 1
            sharding = Sharding(ranks, config.learners, device_of(config)) if several else None
            trainer = Trainer(
                trainee, config.algorithm, config.total_steps, config.seed, ranks, sharding
            )
            loop = FinetuneLoop(
                config, run, trainer, windows, held_windows, player, tracker, logger,
                about, writer,
            )  # fmt: skip
            if several or ranks.planned > 1:
                logger.info("%d of %d learners train", ranks.number, ranks.planned)
            if resumes:
                loop.restore()
            first_writes(run, ranks, lambda: run.keep_config(config))
            if loop.run(on_samples, stop):
                summary = loop.finish(started)
                end.status = "FINISHED"
            else:
                saved = loop.save("interrupted")
                writer.settle()
                summary = {"updates": trainer.updates, "checkpoint": str(saved)}
                end.status = "KILLED"
    finally:
        if player is not None:
            player.close()
    return summary


def provenance(
    config: FinetuneConfig, checkpoint: PolicyCheckpoint, episodes: list[Episode]
) -> dict[str, Any]:
    """What the policy is made from, kept beside it."""
    return {
        "base_policy": base_policy_of(checkpoint),
        "datasets": datasets_of(episodes),
        "episodes": len(episodes),
        "seed": config.seed,
        "pld_ray": version(),
    }


def base_policy_of(checkpoint: PolicyCheckpoint) -> dict[str, str]:
    """`path` and `fingerprint`."""
    return {"path": str(checkpoint.directory), "fingerprint": checkpoint.fingerprint()}


def datasets_of(episodes: list[Episode]) -> list[dict[str, str]]:
    """`path` and `identity` of each dataset, in the order of the episodes."""
    datasets = {str(e.dataset.root.resolve()): e.dataset for e in episodes}
    return [{"path": path, "identity": identity_of(found)} for path, found in datasets.items()]


def kept_provenance(run: RunDir, name: str) -> Any:
    """What the newest checkpoint that tells says of this; None where none does."""
    folders = (path / POLICY_FOLDER for path in run.find_checkpoints())
    return next(filter(None, (read_json(f / PROVENANCE_FILE).get(name) for f in folders)), None)


def check_same_inputs(run: RunDir, about: dict[str, Any]) -> None:
    """Refuse to go on with another base policy, or other episodes, than a run began with.

    Args:
        run: its checkpoints tell; one without any begins anew.
        about: see `provenance`.

    Raises:
        RunError: naming what has changed.
    """
    check_same_base(run, about["base_policy"])
    check_same_datasets(run, about["datasets"])
    check_same_episodes(run, about["episodes"])


def check_same_base(run: RunDir, base_policy: dict[str, str]) -> None:
    """Refuse to go on with another base policy: weights are the run's, normalisation is the base's.

    Args:
        run: its checkpoints tell; one without any begins anew.
        base_policy: see `base_policy_of`; one that lies elsewhere now is the same.

    Raises:
        RunError: it has changed.
    """
    found = base_policy["fingerprint"]
    known = (kept_provenance(run, "base_policy") or {}).get("fingerprint", found)
    if known != found:
        raise RunError(
            f"{base_policy['path']} is the base policy {found[:12]}, and {run.path} began with "
            f"{known[:12]}: put it back as it was, or begin a new run in another --output_dir"
        )


def check_same_datasets(run: RunDir, datasets: list[dict[str, str]]) -> None:
    """Refuse to go on with other data than a run began with: the episodes held out would be others.

    Args:
        run: its checkpoints tell; one without any begins anew.
        datasets: see `datasets_of`; those that lie elsewhere now are the same.

    Raises:
        RunError: naming the first one that has changed, was added or is missing.
    """
    known = {d["path"]: d["identity"] for d in kept_provenance(run, "datasets") or datasets}
    found = {d["path"]: d["identity"] for d in datasets}
    if list(known.values()) == list(found.values()):
        return
    other = [f"{path} has changed" for path in found if found[path] != known.get(path, found[path])]
    other += [f"{path} was added" for path in found if path not in known]
    other += [f"{path} is missing" for path in known if path not in found]
    other += ["the order of the datasets has changed"]
    raise RunError(
        f"{other[0]} since {run.path} began: episodes that were learnt from would be held out for "
        "validation; put it back as it was, or begin a new run in another --output_dir"
    )


def check_same_episodes(run: RunDir, number: int) -> None:
    """Refuse to go on with other episodes of the same data: an older release learnt from those in
    which `start` marks no frame, too.

    Args:
        run: its checkpoints tell; one without any begins anew.
        number: of the episodes that are learnt from or held out.

    Raises:
        RunError: there were more, or fewer.
    """
    known = kept_provenance(run, "episodes")
    if known not in (None, number):
        raise RunError(
            f"{run.path} began with {known} episodes, and {number} are found now: others would be "
            "held out for validation; begin a new run in another --output_dir"
        )


# --- several --------------------------------------------------------------------------------------


def finetune_on_cluster(
    config: FinetuneConfig, run: RunDir, resumes: bool, on_samples: Advance
) -> dict[str, Any]:
    """`learn` on each of the learners; see `train_together`."""
    config = for_learners(config)
    run.keep_config(config)
    told = updates_done(run) if resumes else 0

    def on_updates(updates: int) -> None:
        nonlocal told
        on_samples((updates - told) * config.algorithm.batch_size)
        told = updates

    summary: dict[str, Any] = train_together(config, run, resumes, learner, on_updates)
    return summary


def updates_done(run: RunDir) -> int:
    """Of the newest checkpoint of a fine-tuning; 0 where there is none."""
    newest = run.latest_checkpoint()
    return 0 if newest is None else int(read_json(newest / PROGRESS_FILE).get("env_steps", 0))


def learner(given: dict[str, Any]) -> dict[str, Any]:
    """What each worker of Ray Train runs, from the beginning or from the newest checkpoint."""
    config: FinetuneConfig = given["config"]
    run, ranks = RunDir(given["folder"]), this_rank(config)
    resumes = begin_rank(run, ranks, given)
    inputs, stop = find_inputs(config), StopFile(run, ranks)
    driver = given["driver"]
    return learn(config, run, resumes, inputs, lambda _: None, stop, ranks, driver)


def for_learners(config: FinetuneConfig) -> FinetuneConfig:
    """With paths that hold where the command was not typed, and the device that they were given."""
    device: Any = "cuda" if config.learners.num_gpus_per_learner else "cpu"
    return dataclasses.replace(with_absolute_paths(config, pathlib.Path.cwd()), device=device)
