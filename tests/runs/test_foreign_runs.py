"""A run's folder from anybody: damaged, or made to run code. It is refused in one sentence."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import sys

import pytest
import yaml
from safetensors.numpy import save_file

from pld_ray.cli import main
from pld_ray.config import TrainConfig
from pld_ray.config.file import dump_config
from pld_ray.rollout.offline_cache import OfflineCache, OfflineCacheError
from pld_ray.runs.listing import list_folder
from pld_ray.runs.trust import check_trusted, known_file, remember
from pld_ray.sweep.config import SweepConfig
from pld_ray.sweep.ended import known_points
from pld_ray.sweep.plan import points_now

MODULE = "planted_environments"


@pytest.fixture
def owned(tmp_path, monkeypatch):
    """The file that planted code makes; the module of that name makes it when it is imported."""
    owned = tmp_path / "owned"
    code = tmp_path / "code"
    code.mkdir()
    body = (
        f"import pathlib\nfrom envs.point import PointEnv\npathlib.Path({str(owned)!r}).touch()\n"
    )
    (code / f"{MODULE}.py").write_text(body + "class Env(PointEnv): pass\n")
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield owned
    sys.modules.pop(MODULE, None)


def foreign_run(folder, change=None, text=None):
    """What `train` leaves, as far as a command looks before it reads tensors."""
    checkpoint = folder / "checkpoints" / "best"
    checkpoint.mkdir(parents=True)
    config = TrainConfig()
    config.policy.type = "none"
    if change is not None:
        change(config)
    (folder / "config.yaml").write_text(dump_config(config) if text is None else text)
    (checkpoint / "residual_sac.json").write_text(json.dumps({"env_steps": 10}))
    (folder / "mlflow_run.json").write_text(json.dumps({"tracking_uri": "x", "run_id": "y"}))
    return folder


def entry(entry_point, **kwargs):
    def change(config):
        config.env.entry_point, config.env.kwargs = entry_point, kwargs

    return change


def env_vars(config):
    config.placement.env_vars = {"LD_PRELOAD": "/planted.so"}


def working_dir(config):
    config.placement.working_dir = os.getcwd()


def cluster(config):
    config.ray_address = "203.0.113.1:6379"


def robot(config):
    env = config.env
    env.robot, env.control_hz = {"type": "so101_follower", "port": "/dev/ttyACM0"}, 10.0
    env.arm.model, env.arm.end_effector, env.arm.rest_pose = "arm.urdf", "hand", {"pan": 0.0}
    env.arm.bounds_low, env.arm.bounds_high = [0.0] * 3, [1.0] * 3
    config.runners.num_env_runners = 0


COMMANDS = {
    "resume": lambda run: ["train", f"--resume={run}"],
    "dry_run": lambda run: ["train", f"--resume={run}", "--dry_run"],
    "eval": lambda run: ["eval", f"--checkpoint={run}/checkpoints/best"],
    "register": lambda run: ["register", str(run), "--name=x"],
}
FOREIGN = {
    "os.system": entry("os:system", command="touch owned"),
    "a class that is no environment": entry("subprocess:Popen", args=["touch", "owned"]),
    "a module that runs when imported": entry(f"{MODULE}:Env"),
    "variables": env_vars,
    "a folder of code": working_dir,
    "a cluster": cluster,
    "a robot that is here": robot,
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("what", FOREIGN)
def test_the_code_that_a_foreign_run_names_asks_for_trust(what, command, owned, tmp_path, capsys):
    run = foreign_run(tmp_path / "run", FOREIGN[what])
    assert main(COMMANDS[command](run)) == 2
    error = capsys.readouterr().err
    assert f"{run}/config.yaml names code" in error
    assert error.rstrip().endswith("if you trust it, say so with --trust")
    assert error.count("\n") == 1
    assert not owned.exists()
    assert MODULE not in sys.modules


@pytest.mark.parametrize("entry_point", ["os:system", "subprocess:Popen", "builtins:exec", "x"])
def test_only_an_environments_class_is_ever_called(entry_point, owned, tmp_path, capsys):
    run = foreign_run(tmp_path / "run", entry(entry_point, command=f"touch {owned}"))
    assert main([*COMMANDS["dry_run"](run), "--trust"]) == 2
    assert f"env.entry_point={entry_point!r}" in capsys.readouterr().err
    assert not owned.exists()


def test_what_a_user_started_with_needs_no_trust_again(owned, tmp_path, capsys):
    config = TrainConfig()
    entry(f"{MODULE}:Env", episode_length=7)(config)
    stored = tmp_path / "config.yaml"
    remember([config])
    remember([config])
    check_trusted(config, stored, trust=False)
    assert len(known_file().read_text().split()) == 1
    assert known_file().stat().st_mode & 0o077 == 0
    run = foreign_run(tmp_path / "run", entry(f"{MODULE}:Env", episode_length=8))  # other arguments
    assert main(COMMANDS["dry_run"](run)) == 2
    assert "episode_length': 8" in capsys.readouterr().err
    own = TrainConfig()
    entry("envs.point:PointEnv", episode_length=9)(own)
    check_trusted(own, stored, trust=False)


TAGS = [
    "!!python/object/apply:os.system [touch owned]",
    "!!python/object/new:subprocess.Popen [[touch, owned]]",
    "env: !!python/name:os.system",
]


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_yaml_tags_construct_nothing(tag, command, owned, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = foreign_run(tmp_path / "run", text=tag)
    assert main(COMMANDS[command](run)) == 2
    assert str(run / "config.yaml") in capsys.readouterr().err
    assert not owned.exists()


def foreign_sweep(folder, base=None, sweep=None):
    folder.mkdir()
    state = {"format_version": 1, "state": "running", "preset": "default", "num_trials": 1}
    (folder / "sweep.json").write_text(json.dumps(state))
    config = TrainConfig()
    if base is not None:
        base(config)
    (folder / "base.yaml").write_text(dump_config(config))
    (folder / "sweep.yaml").write_text(sweep or "name: s\nvariants: {only: {}}\n")
    return folder


@pytest.mark.parametrize(
    ("base", "sweep"),
    [
        (entry(f"{MODULE}:Env"), None),
        (None, f"name: s\nvariants: {{one: {{env.entry_point: '{MODULE}:Env'}}}}\n"),
        (None, "name: !!python/object/apply:os.system [touch owned]\n"),
    ],
    ids=["base", "variant", "tag"],
)
def test_the_code_that_a_foreign_sweep_names_asks_for_trust(base, sweep, owned, tmp_path, capsys):
    folder = foreign_sweep(tmp_path / "sweep", base, sweep)
    assert main(["sweep", f"--resume={folder}"]) == 2
    error = capsys.readouterr().err
    assert str(folder) in error
    assert error.count("\n") == 1
    assert not owned.exists()


def test_a_trials_own_file_moves_what_a_population_mutates_and_nothing_else(tmp_path):
    from pld_ray.sweep.config import Sweep

    trial = tmp_path / "t0000"
    trial.mkdir()
    point = {"algorithm.utd": 0.2, "env.entry_point": "os:system", "seed": 5}
    (trial / "point.json").write_text(json.dumps({"point": point}))
    (tmp_path / "t0001").mkdir()
    (tmp_path / "t0001" / "point.json").write_text("[")
    config = SweepConfig(num_samples=1, seeds=[0])
    config.scheduler.mutations = {"algorithm.utd": {"choice": [0.1, 0.2]}}
    now = points_now(Sweep(config, TrainConfig(), "default"), known_points(tmp_path))
    assert [p["algorithm.utd"] for p in now] == [0.2]
    assert [p["seed"] for p in now] == [0]
    assert "env.entry_point" not in now[0]


def test_an_offline_cache_holds_no_pickle(owned, tmp_path):
    class Planted:
        def __reduce__(self):
            return (pathlib.Path.touch, (owned,))

    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "collection.json").write_text(json.dumps({"identity": {"format_version": 1}}))
    for name in ("offline", "warmup"):
        (folder / f"{name}.safetensors").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(OfflineCacheError):
        OfflineCache(folder, {}).load()
    assert not owned.exists()
    save_file({}, folder / "offline.safetensors")


# --- damaged ------------------------------------------------------------------------------------

DAMAGED = {
    "empty": b"",
    "binary": bytes(range(256)),
    "utf-16": "env: {}".encode("utf-16"),
    "a list": b"- 1",
    "cut off": dump_config(TrainConfig()).encode()[:2000],
    "cyclic": b"env: &a {x: *a}",
    "deep": b"[" * 5000,
    "null groups": b"env:\npolicy:\nalgorithm:\nrunners:\ntotal_steps:\nray_address:\n",
    "wrong kinds": b"env: 3\npolicy: []\nalgorithm: x\nrunners: y\ntotal_steps: z\nray_address: 1",
}


@pytest.mark.parametrize("command", ["resume", "eval", "register"])
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_config_is_one_sentence(content, command, tmp_path, capsys):
    run = foreign_run(tmp_path / "run")
    (run / "config.yaml").write_bytes(content)
    before = sorted(run.rglob("*"))
    assert main(COMMANDS[command](run)) == 2
    error = capsys.readouterr().err
    assert str(run / "config.yaml") in error
    assert "Traceback" not in error
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_one_damaged_file_leaves_the_list_of_the_others(content, tmp_path, capsys):
    foreign_run(tmp_path / "whole")
    bad = foreign_run(tmp_path / "bad")
    for name in (
        "config.yaml",
        "summary.json",
        "metrics.jsonl",
        "run.lock",
        "status.json",
        "sweep.json",
    ):
        if name == "sweep.json":
            (bad / "config.yaml").unlink()
        (bad / name).write_bytes(content)
        assert main(["ls", str(tmp_path), "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["whole"]["state"] in ("interrupted", "running")
        if name == "config.yaml" and b"ray_address" not in content:
            assert rows["bad"]["state"] == "damaged", (name, rows)
            assert "config.yaml is damaged" in rows["bad"]["reason"]
        assert main(["ls", str(tmp_path), "--trials"]) == 0
        capsys.readouterr()


@pytest.mark.parametrize(
    "summary",
    [{"residual_success": "high"}, {"env_steps": []}, {"base_success": {}, "env_steps": 1e999}],
)
def test_figures_of_another_kind_are_not_shown(summary, tmp_path):
    run = foreign_run(tmp_path / "run")
    (run / "summary.json").write_text(json.dumps(summary))
    rows = [
        b'{"env_steps": 1, "eval/residual_success": "x"}',
        b'{"env_steps": NaN}',
        b"[[[[" * 9999,
    ]
    (run / "metrics.jsonl").write_bytes(b"\n".join(rows))
    content = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**content, "seed": [1], "total_steps": "x"}))
    (row,) = list_folder(tmp_path)
    assert (row.seed, row.total_steps, row.success, row.base_success) == (None, None, None, None)
    assert row.env_steps == 1


def test_a_password_in_an_address_is_refused_and_not_repeated(tmp_path, capsys, monkeypatch):
    uri = "http://me:hunter2@127.0.0.1:5000"
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"tracking": {"uri": uri}}))
    sweep = tmp_path / "s.yaml"
    sweep.write_text(yaml.safe_dump({"tracking": {"uri": uri}, "variants": {"one": {}}}))
    monkeypatch.chdir(tmp_path)
    for args in (
        ["train", f"--tracking.uri={uri}", "--nonsense=1"],
        ["train", f"--config_path={file}"],
        ["train", "--print_config", f"--config_path={file}"],
        ["sweep", str(sweep), "--print_config"],
        ["register", "run", "--name=x", f"--tracking_uri={uri}"],
        ["report", uri],
    ):
        assert main(args) == 2
        shown = capsys.readouterr()
        assert "hunter2" not in shown.out + shown.err, args
        assert "MLFLOW_TRACKING_PASSWORD" in shown.err
    assert {path.name for path in tmp_path.iterdir()} == {"c.yaml", "s.yaml"}
