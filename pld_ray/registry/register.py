"""A policy into the registry, and out of it again."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pld_ray.jobs.export import chosen, write_base_and_residual
from pld_ray.registry.success import known_success, lower_than_before
from pld_ray.runs.layout import CONFIG_FILE, MLFLOW_FILE, PROGRESS_FILE
from pld_ray.tracking.mlflow_record import check_sqlite, read_record
from pld_ray.tracking.mlflow_store import (
    SENDING_ADVICE,
    MissingRunError,
    opened_store,
    restoring,
    run_lifecycle,
)
from pld_ray.tracking.quiet import quick_mlflow
from pld_ray.tracking.tags import version

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from pld_ray.plugin.acting import ActingPolicy

ALIAS = "best"
MODEL_NAME = "policy"
"""Of the logged model on the run's page."""
MODEL_POLICY = "artifacts/policy"
"""The LeRobot policy folder in an MLflow model."""
STORE_ADVICE = ": give as tracking_uri the store that pld-ray register has printed"
TRANSFER_TIMEOUT_S = 3600
"""Of one file: a server answers when it has passed all of it on to its own store, S3 for one."""


@dataclass(frozen=True)
class RegisteredPolicy:
    """Where a policy is in the registry."""

    name: str
    version: str
    uri: str
    """`models:/NAME@ALIAS`; moves on when a newer version is registered."""
    tracking_uri: str
    checkpoint: str
    """Of the run, by its name."""
    tags: Mapping[str, str]
    """Of the version."""
    warning: str = ""
    """A sentence where the alias was at a version of higher success."""


def register_policy(
    run_dir: str | os.PathLike[str],
    name: str,
    *,
    checkpoint: str | None = None,
    alias: str = ALIAS,
    tracking_uri: str | None = None,
    trust: bool = False,
) -> RegisteredPolicy:
    """Make a new version of the registered model `name` from a checkpoint of a run.

    Args:
        run_dir: folder of the run.
        name: in the registry; made if it is not there.
        checkpoint: folder below the run's `checkpoints/`; None is `best`, or the newest one where
            there is none.
        alias: set to the new version.
        tracking_uri: of the run's store; None is what its folder says.
        trust: run the code that the run names, see `pld_ray.runs.trust`.

    Raises:
        ConfigError: no such checkpoint, a run that MLflow does not know, a name or an alias it
            does not take, or a server that does not answer.
    """
    from pld_ray.config import ConfigError
    from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
    from pld_ray.runs.run_dir import RunDir
    from pld_ray.runs.trust import check_trusted

    _check_names(name, alias)
    folder = pathlib.Path(run_dir).resolve()
    export = f"pld-ray export {shlex.quote(str(folder))} --to=DIR"
    stored = RunDir(folder)
    config = stored.load_config()
    if isinstance(config, ACRLPDTrainConfig):
        raise ConfigError(
            f"{folder} is a run of pld-ray acrlpd, whose policy has no base beneath it: keep it "
            f"with {export}"
        )
    path = chosen(stored, checkpoint)
    check_trusted(config, folder / CONFIG_FILE, trust)
    record = read_record(folder)
    if record is None:
        raise ConfigError(
            f"{folder / MLFLOW_FILE} is missing: the run was not tracked with MLflow, so there is "
            f"no run to register a policy of; keep it with {export}"
        )
    uri, run = tracking_uri or record["tracking_uri"], record["run_id"]
    check_sqlite(uri)
    check_tracked(uri, run, folder)
    with tempfile.TemporaryDirectory() as scratch:
        exported = pathlib.Path(scratch) / "policy"
        settings = write_base_and_residual(path, config, exported)
        (exported / CONFIG_FILE).write_bytes((folder / CONFIG_FILE).read_bytes())
        try:
            with opened_store(uri, SENDING_ADVICE) as client:
                return _register(client, uri, run, name, alias, exported, settings, path)
        except ConnectionError as error:
            raise ConfigError(str(error)) from error


def _check_names(name: str, alias: str) -> None:
    """By MLflow's rules, which it asks itself only after it has been sent everything.

    Raises:
        ConfigError: MLflow does not take the name or the alias.
    """
    from pld_ray.config import ConfigError

    if not name.strip() or re.search(r"[/:]", name):
        raise ConfigError(f"{name!r} is no name for a registered model: it must not hold / or :")
    reserved = alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias)
    if reserved or not re.fullmatch(r"[\w-]{1,255}", alias):
        raise ConfigError(
            f"{alias!r} is no alias for a model's version: give up to 255 letters, digits, _ and "
            "-, not `latest`, and not v with a number"
        )


def check_tracked(uri: str, run_id: str, folder: pathlib.Path) -> None:
    """See that the store has the run, before its policy is written.

    Raises:
        ConfigError: the store does not answer.
        MissingRunError: the run is not there, or was deleted.
    """
    from pld_ray.config import ConfigError

    try:
        with opened_store(uri, SENDING_ADVICE) as client:
            lifecycle = run_lifecycle(client, run_id)
            if lifecycle == "active":
                return
            advice = "give the store that has it with --tracking_uri=..."
            if lifecycle == "deleted":
                advice = f"restore it with {restoring(client, uri, run_id)}"
            raise MissingRunError(
                f"MLflow run {run_id}, of {folder}, is {lifecycle} at {uri}: {advice}"
            )
    except ConnectionError as error:
        raise ConfigError(str(error)) from error


def _register(
    client: MlflowClient,
    uri: str,
    run_id: str,
    name: str,
    alias: str,
    exported: pathlib.Path,
    settings: Mapping[str, Any],
    checkpoint: pathlib.Path,
) -> RegisteredPolicy:
    from mlflow.entities import LoggedModelOutput
    from mlflow.exceptions import MlflowException

    progress = json.loads((checkpoint / PROGRESS_FILE).read_text())
    run = client.get_run(run_id)
    about = {"checkpoint": checkpoint.name, "env_steps": str(progress["env_steps"])}
    about |= known_success(checkpoint)
    about |= {k: v for k, v in run.data.tags.items() if k in ("task", "suite", "seed", "preset")}
    logged = client.create_logged_model(
        run.info.experiment_id,
        name=MODEL_NAME,
        source_run_id=run_id,
        tags=about,
        model_type="pld_ray policy",
    )
    local = exported.parent / "model"
    save_model(local, exported, settings, logged.model_id, run_id)
    with quick_mlflow(TRANSFER_TIMEOUT_S):
        client.log_model_artifacts(logged.model_id, str(local))
    client.finalize_logged_model(logged.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, progress["env_steps"])])
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    made = client.create_model_version(
        name,
        logged.artifact_location,
        run_id=run_id,
        tags=about,
        description=f"Base + residual of run {run.info.run_name}, checkpoint {checkpoint.name}",
        model_id=logged.model_id,
    )
    warning = lower_than_before(client, name, alias, about)
    client.set_registered_model_alias(name, alias, made.version)
    model = f"models:/{name}@{alias}"
    return RegisteredPolicy(name, str(made.version), model, uri, checkpoint.name, about, warning)


def save_model(
    path: pathlib.Path,
    exported: pathlib.Path,
    settings: Mapping[str, Any],
    model_id: str | None = None,
    run_id: str | None = None,
) -> None:
    """Write the MLflow model of an exported policy to `path`: code, signature, example, files."""
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import DataType, ParamSchema, ParamSpec, Schema, TensorSpec

    def tensor(key: str, space: Mapping[str, Any]) -> TensorSpec:
        return TensorSpec(np.dtype(space["dtype"]), (-1, *space["shape"]), key)

    observations = settings["observations"]
    example = {
        key: np.zeros((1, *space["shape"]), space["dtype"]) for key, space in observations.items()
    }
    mlflow.pyfunc.save_model(
        str(path),
        python_model=str(pathlib.Path(__file__).with_name("policy_model.py")),
        artifacts={"policy": str(exported)},
        signature=ModelSignature(
            inputs=Schema([tensor(key, space) for key, space in observations.items()]),
            outputs=Schema([tensor("action", settings["actions"])]),
            params=ParamSchema(
                [
                    ParamSpec("episode_start", DataType.boolean, [], (-1,)),
                    ParamSpec("tasks", DataType.string, [], (-1,)),
                ]
            ),
        ),
        input_example=example,
        pip_requirements=[f"pld-ray=={version()}" if version() else "pld-ray"],
        mlflow_model=Model(model_id=model_id, run_id=run_id),
    )


def load_policy(model_uri: str, tracking_uri: str) -> ActingPolicy:
    """A policy ready to act; no global MLflow state is read or changed, and no code of the model
    is run: its JSON and safetensors are read by this pld-ray.

    Args:
        model_uri: `models:/NAME@ALIAS` or `models:/NAME/VERSION`.
        tracking_uri: of the store that it was registered in.

    Raises:
        ConfigError: the URI has another form, names no model of pld-ray, or the store does not
            answer.
    """
    from pld_ray.config import ConfigError
    from pld_ray.plugin.acting import load_residual

    match = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/(\d+))", model_uri)
    if match is None:
        raise ConfigError(f"{model_uri!r} is no model: give models:/NAME@ALIAS or models:/NAME/1")
    name, alias, number = match.groups()
    check_sqlite(tracking_uri, "tracking_uri")
    try:
        with opened_store(tracking_uri, STORE_ADVICE) as client:
            source, there_is = _source(client, name, alias, number)
        if source is None:
            raise ConfigError(
                f"{model_uri} cannot be loaded: not found at {tracking_uri}, which has {there_is}"
            )
        with opened_store(tracking_uri, "") as client, tempfile.TemporaryDirectory() as scratch:
            import mlflow.artifacts

            with quick_mlflow(TRANSFER_TIMEOUT_S):
                local = mlflow.artifacts.download_artifacts(
                    artifact_uri=source, dst_path=scratch, tracking_uri=tracking_uri
                )
            return load_residual(pathlib.Path(local) / MODEL_POLICY)
    except ConnectionError as error:
        raise ConfigError(f"{model_uri} cannot be loaded: {error}") from error


def _source(
    client: MlflowClient, name: str, alias: str | None, number: str | None
) -> tuple[str | None, str]:
    """Where the files of a version lie; None where there is none, and what there is instead."""
    from mlflow.exceptions import MlflowException

    try:
        if alias is not None:
            number = client.get_model_version_by_alias(name, alias).version
        return client.get_model_version_download_uri(name, number), ""
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
    models = {model.name: model for model in client.search_registered_models()}
    if name not in models:
        named = ", ".join(models) or "none: pld-ray register makes one"
        return None, f"the models {named}"
    found = client.search_model_versions(f"name='{name}'")
    versions = ", ".join(map(str, sorted(int(version.version) for version in found)))
    aliases = ", ".join(models[name].aliases) or "none"
    return None, f"of {name} the versions {versions or 'none'} and the aliases {aliases}"
