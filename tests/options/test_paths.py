"""Paths that are kept hold in every folder; what is no path of this machine stays as it is."""

from __future__ import annotations

import pytest

from pld_ray.config import TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.config.policy import EMBEDDED_POLICIES
from pld_ray.options import fields_of, same_places, values_of, with_absolute_paths

FOLDERS = ("policies/act", "data", "hub", EMBEDDED_POLICIES[1])


@pytest.fixture
def project(tmp_path, monkeypatch):
    project = tmp_path / "project"
    for name in FOLDERS:
        (project / name).mkdir(parents=True)
    (project / "arm.xml").touch()
    (project / EMBEDDED_POLICIES[0]).touch()  # a file is no policy
    monkeypatch.chdir(tmp_path)  # the folder is given, and not the one that we are in
    return project


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("policies/act", "{}/policies/act"),
        ("./policies/act", "{}/policies/act"),
        ("../project/policies/act", "{}/policies/act"),
        ("/there/act", "/there/act"),
        ("owner/name", "owner/name"),
        ("policies/another", "policies/another"),
        (EMBEDDED_POLICIES[0], EMBEDDED_POLICIES[0]),
        (EMBEDDED_POLICIES[1], "{}/" + EMBEDDED_POLICIES[1]),  # as `open_checkpoint` takes it
        (None, None),
    ],
)
def test_a_policy_that_is_there_is_kept_with_its_whole_path(path, kept, project):
    config = TrainConfig()
    config.policy.path = path
    absolute = with_absolute_paths(config, project).policy.path
    assert absolute == (kept and kept.format(project))
    assert config.policy.path == path


def test_every_kind_of_path_is_taken(project):
    config = TrainConfig(demo_path=["data", "gone", "/there"], output_dir="run", norm_stats="data")
    config.env.assets, config.env.arm.model = "hub", "arm.xml"
    config.env.task = "data"  # no path, though there is a folder of that name
    kept = with_absolute_paths(config, project)
    assert kept.demo_path == [f"{project}/data", "gone", "/there"]
    assert (kept.env.assets, kept.env.arm.model) == ("hub", f"{project}/arm.xml")
    assert (kept.norm_stats, kept.env.task) == (f"{project}/data", "data")
    assert (kept.output_dir, kept.offline_cache) == (f"{project}/run", None)  # it will be there
    config.output_dir = "s3://bucket/run"
    assert with_absolute_paths(config, project).output_dir == "s3://bucket/run"


@pytest.mark.parametrize("config_class", [TrainConfig, ACRLPDTrainConfig, FinetuneConfig])
def test_no_option_that_is_a_path_is_left_out(config_class, project):
    config = config_class()
    paths = {field.key for field in fields_of(config_class) if field.option.path}
    named = {f.key for f in fields_of(config_class) if f.key.endswith(("path", "r_weights"))}
    assert named <= paths
    for field, value in values_of(config):
        if field.key in paths:
            *groups, name = field.key.split(".")
            owner = config
            for group in groups:
                owner = getattr(owner, group)
            file = "arm.xml" if field.option.path == "file" else "data"
            setattr(owner, name, [file] if isinstance(value, list) else file)
    for field, value in values_of(with_absolute_paths(config, project)):
        if field.key in paths:
            assert str(project) in str(value), field.key


def test_what_is_copied_to_every_node_is_found_there_by_its_relative_path(project):
    config = TrainConfig(demo_path=["policies/act", "data"], output_dir="policies/run")
    config.placement.working_dir = "policies"
    kept = with_absolute_paths(config, project, project / "policies")
    assert kept.demo_path == ["policies/act", f"{project}/data"]
    assert kept.placement.working_dir == f"{project}/policies"
    assert kept.output_dir == f"{project}/policies/run"


def test_data_is_the_same_however_its_paths_are_written(project, monkeypatch):
    monkeypatch.chdir(project)
    typed = {"fingerprint": "ab", "loader": {"tokenizer_path": "data", "dtype": None}}
    whole = {"fingerprint": "ab", "loader": {"tokenizer_path": f"{project}/data", "dtype": None}}
    assert same_places(typed, whole)
    monkeypatch.setenv("HOME", str(project))
    assert same_places({**typed, "loader": {"tokenizer_path": "~/data", "dtype": None}}, whole)
    assert not same_places(typed, {**whole, "fingerprint": "cd"})
    assert not same_places(typed, {**whole, "prefetch": True})
    assert not same_places({"steps": 1}, {"steps": "1"})
    monkeypatch.chdir("/")
    assert not same_places(typed, whole)
