"""What is asked of the registry, without a run: names that it takes, time for large files."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace
from unittest import mock

import pytest
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT
from mlflow.exceptions import MlflowException
from mlflow.utils.validation import (
    _validate_model_alias_name,
    _validate_model_alias_name_reserved,
)

from pld_ray.config import ConfigError
from pld_ray.registry import load_policy, register, register_policy
from pld_ray.tracking.mlflow_store import OPEN_TIMEOUT_S
from pld_ray.tracking.quiet import quick_mlflow

GOOD = ["best", "prod-1", "v", "v1a", "1", "latest_one", "ä", "a" * 255]
BAD = ["", " ", "a b", "a/b", "a@b", "a.b", "best\n", "latest", "Latest", "v1", "V22", "a" * 256]


@pytest.mark.parametrize("alias", BAD)
def test_an_alias_that_mlflow_refuses_is_refused_before_anything_else(alias, tmp_path):
    with pytest.raises(ConfigError, match="is no alias"):
        register_policy(tmp_path, "name", alias=alias)


@pytest.mark.parametrize("alias", GOOD)
def test_an_alias_that_mlflow_takes_is_taken(alias, tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        register_policy(tmp_path, "name", alias=alias)


def test_mlflow_judges_these_aliases_alike():
    def taken(alias):
        try:
            _validate_model_alias_name(alias)
            _validate_model_alias_name_reserved(alias)
        except MlflowException:
            return False
        return True

    assert [alias for alias in GOOD if not taken(alias)] == []
    assert [alias for alias in BAD if taken(alias)] in ([], ["best\n"])


@pytest.fixture
def client(monkeypatch):
    """A client that stands in for a store's, within the store's time limit."""
    client = mock.MagicMock()

    @contextlib.contextmanager
    def opened(uri, advice):
        with quick_mlflow(OPEN_TIMEOUT_S):
            yield client

    monkeypatch.setattr(register, "opened_store", opened)
    monkeypatch.delenv(MLFLOW_HTTP_REQUEST_TIMEOUT.name, raising=False)
    return client


def test_an_upload_may_take_its_time_and_a_question_may_not(client, monkeypatch, tmp_path):
    limits = {}

    def note(name):
        return lambda *_, **__: limits.setdefault(name, MLFLOW_HTTP_REQUEST_TIMEOUT.get())

    monkeypatch.setattr(register, "save_model", note("save"))
    client.get_run.return_value.data.tags = {}
    client.log_model_artifacts.side_effect = note("upload")
    client.create_registered_model.side_effect = note("ask")
    (tmp_path / "residual_sac.json").write_text(json.dumps({"env_steps": 1}))
    with register.opened_store("", "") as opened:
        register._register(opened, "", "run", "name", "best", tmp_path / "policy", {}, tmp_path)
    assert limits["upload"] == register.TRANSFER_TIMEOUT_S >= 1800
    assert limits["ask"] == OPEN_TIMEOUT_S


def test_a_download_may_take_its_time(client, monkeypatch, tmp_path):
    limits = []

    def download(**_):
        limits.append(MLFLOW_HTTP_REQUEST_TIMEOUT.get())
        return str(tmp_path)

    monkeypatch.setattr("mlflow.artifacts.download_artifacts", download)
    acting = SimpleNamespace()
    monkeypatch.setattr("pld_ray.plugin.acting.load_residual", lambda folder: acting)
    assert load_policy("models:/name@best", "http://server") is acting
    assert limits == [register.TRANSFER_TIMEOUT_S]
