"""A run goes on from another folder, on another cluster, with a store that has moved."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import ray
from mlflow.tracking import MlflowClient
from next_life import tracked
from policy_fixtures import save_act
from sharded_data import write_dataset
from test_train import BRIEF, POINT

from pld_ray.cli import collect, finetune, main, train
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import dump_config, load_config
from pld_ray.config.finetune import FinetuneConfig
from pld_ray.jobs import cluster
from pld_ray.jobs.elsewhere import UNPACKED, joined_now, located, start_folder
from pld_ray.jobs.learners import check_gpus
from pld_ray.jobs.open_tracker import open_tracker
from pld_ray.policies import EMBEDDED_ACT
from pld_ray.rollout.offline_cache import OfflineCache, OfflineCacheError
from pld_ray.runs.layout import PROGRESS_FILE
from pld_ray.runs.run_dir import RunDir
from pld_ray.runs.trust import code_settings
from pld_ray.tracking.mlflow_record import ARTIFACTS, write_record

OLD, NEW, OWN = "10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"


@pytest.fixture(autouse=True)
def at_home(tmp_path, monkeypatch):
    """What this user has started with is kept here."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def stored(folder: pathlib.Path, *flags: str, config_class: type = TrainConfig) -> str:
    """A run of somebody who may have another home."""
    config = load_config(config_class, [f"--output_dir={folder}", *flags])
    RunDir(folder).create(config)
    return str(folder)


# --- what may be given anew -----------------------------------------------------------------------


def test_where_a_run_goes_on_may_be_given_anew(tmp_path):
    run = stored(tmp_path / "run", "--ray_address=auto")
    anew = [
        "--ray_address=null", "--ray_port=7000", "--placement.check=false",
        "--placement.wait_s=60", "--tracking.uri=http://there:5000", "--tracking.enabled=false",
    ]  # fmt: skip
    config = train.resumed_config(run, anew, False)
    assert (config.ray_address, config.ray_port) == (None, 7000)
    assert (config.placement.check, config.placement.wait_s) == (False, 60)
    assert (config.tracking.uri, config.tracking.enabled) == ("http://there:5000", False)
    with pytest.raises(ConfigError, match=r"remove --seed \(only --total_steps, .*enabled can be"):
        train.resumed_config(run, [*anew, "--seed=3"], False)


def test_a_fine_tuning_may_go_on_elsewhere_and_not_for_longer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = stored(tmp_path / "run", config_class=FinetuneConfig)
    anew = [f"--ray_address={NEW}", "--placement.check=false", "--tracking.uri=sqlite:///here.db"]
    asked = finetune.parser().read([f"--resume={run}", *anew])
    config = finetune.configured(asked)
    assert (config.ray_address, config.placement.check) == (NEW, False)
    assert config.tracking.uri == f"sqlite:///{tmp_path}/here.db"
    for other in ("--total_steps=9", "--placement.wait_s=1"):
        asked = finetune.parser().read([f"--resume={run}", other])
        with pytest.raises(ConfigError, match=r"remove|does not exist"):
            finetune.configured(asked)


@pytest.mark.parametrize("command", ["train", "acrlpd", "finetune", "pretrain"])
def test_help_says_what_may_be_given_anew(command, capsys):
    main([command, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for key in ("ray_address", "placement.check", "tracking.uri", "tracking.enabled"):
        assert key in said.partition("may be given anew:")[2]


# --- which cluster --------------------------------------------------------------------------------


def test_ray_address_goes_before_a_stored_one_and_not_before_a_given_one(tmp_path, monkeypatch):
    run = stored(tmp_path / "run", f"--ray_address={OLD}")
    local = stored(tmp_path / "local")
    assert train.resumed_config(run, [], True).ray_address == OLD
    monkeypatch.setenv("RAY_ADDRESS", NEW)
    assert train.resumed_config(run, [], True).ray_address == NEW
    assert train.resumed_config(run, [f"--ray_address={OWN}"], True).ray_address == OWN
    assert train.resumed_config(run, ["--ray_address=local"], True).ray_address == "local"
    assert train.resumed_config(local, [], True).ray_address is None  # RAY_ADDRESS is asked anyway
    assert joined_now(TrainConfig(), OWN).ray_address == OWN
    assert joined_now(TrainConfig(ray_address="local")).ray_address == "local"
    assert joined_now(TrainConfig(ray_address="local"), OWN).ray_address == OWN
    checkpoint = tmp_path / "run/checkpoints/best"
    checkpoint.mkdir()
    (checkpoint / PROGRESS_FILE).write_text("{}")
    recorded = ["--root=data", f"--checkpoint={checkpoint}", "--trust"]
    assert collect.configured(collect.parser().read(recorded)).ray_address == NEW
    recorded.append(f"--ray_address={OWN}")
    assert collect.configured(collect.parser().read(recorded)).ray_address == OWN


def test_a_ray_of_its_own_is_this_machine_and_nobody_s_code():
    own = load_config(TrainConfig, ["--ray_address=local", "--ray_port=7000"])
    assert code_settings(own) == {}
    asked = ["--learners.num_learners=2", "--learners.num_gpus_per_learner=64"]
    learning = load_config(FinetuneConfig, [*asked, "--ray_address=local"])
    with pytest.raises(ConfigError, match="need more GPUs than the"):
        check_gpus(learning)


def test_a_cluster_that_is_given_needs_no_trust_and_vouches_for_nothing_else(tmp_path):
    run = stored(tmp_path / "run")
    config = train.resumed_config(run, [f"--ray_address={NEW}"], False)
    RunDir(run).keep_config(config)
    assert train.resumed_config(run, [], False).ray_address == NEW
    foreign = stored(tmp_path / "foreign", '--placement.env_vars={"LD_PRELOAD": "/planted.so"}')
    with pytest.raises(ConfigError, match=r"planted\.so.*--trust"):
        train.resumed_config(foreign, [f"--ray_address={NEW}"], False)
    RunDir(foreign).keep_config(train.resumed_config(foreign, [f"--ray_address={NEW}"], True))
    with pytest.raises(ConfigError, match=r"planted\.so.*--trust"):
        train.resumed_config(foreign, [], False)


def test_a_ray_of_ones_own_is_started_whatever_ray_address_says(monkeypatch):
    asked = []
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster, "start_local", lambda **how: asked.append(how["num_cpus"]))
    monkeypatch.setenv("RAY_ADDRESS", OLD)
    config = TrainConfig(ray_address="local")
    config.runners.num_env_runners, config.runners.num_cpus_per_env_runner = 500, 1.0
    assert cluster.start_ray(config)
    assert asked == [500]


# --- the store ------------------------------------------------------------------------------------


def in_its_own_process(folder):
    """MLflow remembers where the artifacts of a run were."""
    again = f"import next_life; next_life.go_on({str(folder)!r})"
    path = os.pathsep.join([*sys.path, str(pathlib.Path(__file__).parent)])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", again], check=True, env=environment)


@pytest.mark.parametrize("copied", [False, True])
def test_artifacts_of_a_run_that_had_none_lie_beside_its_store(copied, tmp_path, store):
    """They are logged at the end: neither folder is there before."""
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(store, old)
    run = RunDir(stored(old / "run", "--policy.type=none"))
    tracker = open_tracker(run.load_config(), run)
    tracker.finish("KILLED")
    assert not (old / ARTIFACTS).exists()
    new.mkdir()
    (shutil.copytree if copied else pathlib.Path.rename)(old / "run", new / "run")
    (shutil.copy if copied else pathlib.Path.rename)(old / "mlflow.db", new / "moved.db")
    run = RunDir(new / "run")
    run.keep_config(
        train.resumed_config(str(run.path), [f"--tracking.uri=sqlite:///{new}/moved.db"], False)
    )
    in_its_own_process(run.path)
    here, there = (old, new) if copied else (new, old)  # a copy leaves the run where it was
    (file,) = here.glob(f"{ARTIFACTS}/**/second.txt")
    assert tracker.run_id in file.parts
    assert not (there / ARTIFACTS).exists()


def test_a_store_that_has_moved_goes_on_where_it_is_now(tmp_path, monkeypatch, store):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    for file in pathlib.Path(store).iterdir():
        shutil.copy(file, old)
    run = RunDir(stored(old / "run", "--policy.type=none"))
    begun = tracked(run.load_config(), run, 1, "first.txt")
    old.rename(new)
    run = RunDir(new / "run")
    with pytest.raises(ConfigError, match=r"old/mlflow\.db, .*is missing: .*--tracking\.uri="):
        open_tracker(run.load_config(), run)
    monkeypatch.chdir(new)
    anew = ["--tracking.uri=sqlite:///mlflow.db?timeout=60"]
    config = train.resumed_config(str(run.path), anew, False)
    assert config.tracking.uri == f"sqlite:///{new}/mlflow.db?timeout=60"
    run.keep_config(config)
    monkeypatch.chdir("/")  # what is given anew holds for the next one
    in_its_own_process(run.path)
    client = MlflowClient(config.tracking.uri)
    assert {f.path for f in client.list_artifacts(begun)} == {f"{n}.txt" for n in
        ("first", "second")}  # fmt: skip
    assert [m.step for m in client.get_metric_history(begun, "success")] == [1, 2]
    assert not old.exists()


def test_a_relative_store_of_an_older_run_is_the_recorded_one(tmp_path, monkeypatch, store):
    shutil.copytree(store, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    run = RunDir(stored(tmp_path / "run", "--tracking.uri=sqlite:///mlflow.db"))
    begun = tracked(run.load_config(), run, 1, "first.txt")
    shutil.copytree(store, tmp_path / "another")
    monkeypatch.chdir(tmp_path / "another")  # with a store of the same name, of other runs
    assert tracked(run.load_config(), run, 2, "second.txt") == begun
    monkeypatch.chdir("/")
    assert tracked(run.load_config(), run, 3, "third.txt") == begun
    write_record(run.path, f"sqlite:///{tmp_path}/elsewhere.db", begun)
    monkeypatch.chdir(tmp_path / "project")
    assert tracked(run.load_config(), run, 4, "fourth.txt") == begun  # of another name


# --- paths ----------------------------------------------------------------------------------------


def test_a_new_run_keeps_what_holds_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "act").mkdir()
    typed = load_config(TrainConfig, ["--policy.path=act", "--tracking.uri=sqlite:///x.db?a=1"])
    kept = located(typed, start_folder())
    assert kept.policy.path == f"{tmp_path}/act"
    assert kept.tracking.uri == f"sqlite:///{tmp_path}/x.db?a=1"
    assert (typed.policy.path, typed.tracking.uri) == ("act", "sqlite:///x.db?a=1")
    typed.placement.working_dir = "."
    kept = located(typed, start_folder())
    assert (kept.policy.path, kept.placement.working_dir) == ("act", str(tmp_path))


def test_what_ray_has_unpacked_for_a_job_is_found_by_its_relative_path(tmp_path, monkeypatch):
    folder = tmp_path / "runtime_resources" / UNPACKED / "_ray_pkg_0" / "act"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    config = load_config(TrainConfig, ["--policy.path=act"])
    assert located(config, start_folder()) == config


def test_print_config_shows_what_was_typed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "act").mkdir()
    assert main(["train", "--policy.path=act", "--print_config"]) == 0
    config = TrainConfig()
    config.policy.path = "act"
    assert capsys.readouterr().out == dump_config(config)


def test_a_cache_of_an_older_run_is_found_by_one_that_keeps_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    episode = {name: np.zeros(2, np.float32) for name in ("reward", "terminated", "truncated")}

    def cache(tokenizer):
        return OfflineCache("cache", {"base_policy_loader": {"tokenizer_path": tokenizer}})

    cache("tokenizer").save([episode], [episode], [1])
    assert cache(f"{tmp_path}/tokenizer").load()[2] == [1]
    with pytest.raises(OfflineCacheError, match="base_policy_loader"):
        cache(f"{tmp_path}/another").load()


def test_a_fine_tuning_keeps_what_holds_in_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_act(tmp_path / "act")
    write_dataset(tmp_path / "data", (12, 3, 9))
    flags = ["--policy.path=act", "--algorithm.batch_size=2", "--total_steps=1", "data"]
    flags += ["--tracking.enabled=false", "--evaluation.interval_steps=0", "--output_dir=run"]
    assert main(["finetune", *flags]) == 0
    config = RunDir("run").load_config(FinetuneConfig)
    assert (config.policy.path, config.dataset) == (f"{tmp_path}/act", [f"{tmp_path}/data"])


@pytest.mark.usefixtures("ray_cluster")
def test_a_run_goes_on_and_is_evaluated_from_another_folder(tmp_path, monkeypatch, capsys):
    project, run = tmp_path / "project", tmp_path / "project/outputs/run"
    shutil.copytree(EMBEDDED_ACT, project / "policies/act")
    monkeypatch.chdir(project)
    flags = ["--policy.path=policies/act", "--output_dir=outputs/run"]
    assert main(["train", *POINT, *BRIEF, *flags]) == 0
    config = RunDir(run).load_config()
    assert config.policy.path == f"{project}/policies/act"
    assert config.output_dir == str(run)
    monkeypatch.chdir("/")
    assert main(["train", f"--resume={run}", "--total_steps=800", "--placement.check=false"]) == 0
    assert RunDir(run).load_config().placement.check is False
    evaluated = ["eval", f"--checkpoint={run}/checkpoints/final", "--n_episodes=1"]
    assert main([*evaluated, "--ray_address=127.0.0.1:1"]) == 0  # Ray is running in this process
    assert "on 1 held init states" in capsys.readouterr().out


def test_eval_joins_the_cluster_that_is_named_now(tmp_path, monkeypatch, capsys, request):
    """None answers at either address: what is refused is what was asked."""
    run = RunDir(stored(tmp_path / "run", *POINT, *BRIEF, "--ray_address=127.0.0.1:1"))
    checkpoint = run.checkpoints / "best"
    checkpoint.mkdir()
    (checkpoint / PROGRESS_FILE).write_text("{}")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    evaluated = ["eval", f"--checkpoint={checkpoint}", "--trust"]
    assert main(evaluated) == 2
    assert "no Ray cluster answers at 127.0.0.1:1 (" in capsys.readouterr().err
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:2")
    assert main(evaluated) == 2
    assert "no Ray cluster answers at 127.0.0.1:2 (" in capsys.readouterr().err
    assert main([*evaluated, "--ray_address=127.0.0.1:3"]) == 2
    said = capsys.readouterr().err
    assert "no Ray cluster answers at 127.0.0.1:3 (" in said
    assert "--ray_address=local" in said
    assert os.environ["RAY_ADDRESS"] == "127.0.0.1:2"
