"""The MLflow run of a training run, as its configuration asks for it."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.files.lock import Owner, this_process
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.status import RUNNING, failure_reason
from pld_ray.tracking.mlflow_record import read_record, sqlite_path, sqlite_uri
from pld_ray.tracking.mlflow_run import MlflowRun
from pld_ray.tracking.mlflow_store import (
    MissingRunError,
    check_tracking,
    delete_run,
    find_child,
    retried,
)
from pld_ray.tracking.mlflow_values import flatten_params
from pld_ray.tracking.sending import SendReport, send_left
from pld_ray.tracking.tags import run_tags

SERVER_WAIT_S, FILE_WAIT_S = 12 * 3600.0, 120.0
"""A trial that begins while the server is away waits for it, over a night too: else it would fail,
and all that follow it. A file is there or is not, and `localhost` of a node that is not the
sweep's may never have a server. A user at a terminal does not wait."""


@dataclass
class RunEnd:
    """How a run ends, in MLflow's words; whoever runs it says so when it does not fail."""

    status: str = "FAILED"


@contextlib.contextmanager
def told_of_end(
    tracker: MlflowRun | None, logger: logging.Logger, has_begun: Callable[[], bool] = lambda: True
) -> Iterator[RunEnd]:
    """Log what fails, and end the MLflow run as the block has ended.

    Args:
        tracker, logger: of the run.
        has_begun: whether a run that fails or is stopped is kept; else its MLflow run is deleted.
    """
    end, kept = RunEnd(), True
    try:
        yield end
    except BaseException as error:
        kept = has_begun()
        if not isinstance(error, Exception):
            end.status = "KILLED"
            raise
        logger.exception("the run failed")
        if tracker is not None:
            tracker.set_tag("failure", failure_reason(error))
        raise
    finally:
        if tracker is not None and kept:
            tracker.finish(end.status)
        elif tracker is not None:
            tracker.discard()


@contextlib.contextmanager
def untracked_unless(run: RunDir, has_begun: Callable[[], bool]) -> Iterator[None]:
    """Delete the MLflow run where learners that are processes of their own come to nothing: none of
    them knows whether others will be started in their place."""
    try:
        yield
    except BaseException:
        record = None if has_begun() else read_record(run.path)
        if record is not None:
            with contextlib.suppress(ConnectionError):
                delete_run(record["tracking_uri"], record["run_id"])
        raise


def open_tracker(
    config: TrainConfig | FinetuneConfig,
    run: RunDir,
    *,
    kind: str = "train",
    parent_run_id: str | None = None,
    extra_tags: Mapping[str, str] | None = None,
    preset: str = "default",
    varied: Mapping[str, str] | None = None,
    driver: Owner | None = None,
    sweep_host: str | None = None,
) -> MlflowRun | None:
    """The MLflow run of this training run, continued when the folder knows one.

    Args:
        config: of the run; its `tracking` says where to log, or that nothing is logged.
        run: folder of the run.
        kind: `train`, `trial` or `finetune`. A trial whose folder is gone finds its MLflow run by
            `parent_run_id` and the tag `trial`.
        parent_run_id: MLflow run of the sweep.
        extra_tags: `sweep`, `trial` and `point` of a trial.
        preset: name of the preset that the configuration was made from.
        varied: axis -> value of a trial, for the axes in which the sweep's trials differ; they name
            the run and are logged before all other parameters.
        driver: the process that this one works for, where that one holds the folder.
        sweep_host: host of the process that runs the trial's sweep; None is this one.

    Raises:
        ConfigError: the server does not answer, the run is not there any more, or another process
            logs it.
    """
    settings = config.tracking
    if not settings.enabled:
        return None
    uri = settings.uri or sqlite_uri(run.path.parent)
    tags = run_tags(config, kind=kind, preset=preset, run_dir=run.path) | dict(extra_tags or {})
    wait_s, elsewhere = 0.0, sweep_host not in (None, this_process().host)
    if kind == "trial":
        is_short = sqlite_path(uri) is not None or (elsewhere and is_loopback(uri))
        wait_s = FILE_WAIT_S if is_short else SERVER_WAIT_S

    def make() -> MlflowRun:
        run_id = None
        if parent_run_id is not None and "trial" in tags:
            trial = {"trial": tags["trial"]}
            run_id = find_child(uri, settings.experiment, parent_run_id, trial)
        return MlflowRun(
            run.path,
            tracking_uri=uri,
            experiment_name=settings.experiment,
            run_name=settings.run_name or default_run_name(config, tags, varied or {}),
            run_id=run_id,
            parent_run_id=parent_run_id,
            tags=tags,
            journal=run.journal,
            driver=driver,
        )

    with config_errors():
        if read_record(run.path) is None:
            tracker = retried(make, wait_s, lambda text: run.set_status(RUNNING, text))
        else:
            tracker = MlflowRun.resume(
                run.path,
                tracking_uri=settings.uri,
                tags=tags,
                journal=run.journal,
                driver=driver,
            )
    try:
        params = flatten_params(asdict(config))
        del params["output_dir"]  # the tag run_dir; as a parameter all runs would differ in it
        first = [name for axis in varied or {} for name in axis.split(", ") if name in params]
        tracker.log_params({name: params[name] for name in first} | params)
    except BaseException as error:  # nobody else knows of it yet
        tracker.give_up(error)
        raise
    return tracker


def check_tracker(config: TrainConfig | FinetuneConfig) -> None:
    """Refuse a new run's server, or its experiment, as `open_tracker` does, and make nothing there.

    Raises:
        ConfigError: the server does not answer, or the experiment was deleted.
    """
    settings = config.tracking
    if settings.enabled and settings.uri:
        with config_errors():
            check_tracking(settings.uri, settings.experiment)


def is_loopback(uri: str) -> bool:
    """Whether a server's address is of each node itself."""
    try:
        host = urllib.parse.urlsplit(uri).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def default_run_name(
    config: TrainConfig | FinetuneConfig, tags: Mapping[str, str], varied: Mapping[str, str]
) -> str:
    """Task and seed; of a trial its id, in what it differs, without the groups of the keys, and
    the seed.

    MLflow's legends cut long names; the tag `point` has the whole keys, and those of one value.
    """
    if isinstance(config, FinetuneConfig):
        return f"finetune-seed{config.seed}"
    if "trial" not in tags:
        return f"{config.env.task}-seed{config.seed}"
    names = {axis: ",".join(k.rpartition(".")[2] for k in axis.split(", ")) for axis in varied}
    words = [f"{names[axis]}={value}" for axis, value in varied.items() if axis != "seed"]
    return " ".join([tags["trial"], *words, f"seed={config.seed}"])


def send_tracked(run_dir: str | os.PathLike[str], tracking_uri: str | None = None) -> SendReport:
    """`send_left` with errors for a user.

    Raises:
        ConfigError: there is nothing to send, nowhere to send it, or the run is still going on.
    """
    if not os.path.isdir(run_dir):
        raise ConfigError(f"{run_dir}: no such folder")
    with config_errors():
        return send_left(run_dir, tracking_uri)


@contextlib.contextmanager
def config_errors() -> Iterator[None]:
    """Turn what is wrong with a store or a file into ConfigError."""
    try:
        yield
    except (ConnectionError, MissingRunError, FileNotFoundError, BlockingIOError) as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:  # a damaged file
        raise ConfigError(str(error)) from error
