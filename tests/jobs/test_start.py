"""What a start refuses in one sentence, before Ray, and what it leaves behind: nothing."""

from __future__ import annotations

import contextlib
import functools
import importlib
import pathlib
import re
import signal
import socket
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray._private import services

from envs.point import PointEnv
from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.jobs import cluster, cluster_address
from pld_ray.jobs.build import check_environment, offline_cache_folder


class FailsToMake(PointEnv):
    def __init__(self):
        raise KeyError("no robot")


class FailsToReset(PointEnv):
    def reset(self, **kwargs):
        raise OSError("the robot is off")


class FailsToStep(PointEnv):
    def step(self, action):
        raise ZeroDivisionError("the robot fell")


class NoStates(PointEnv):
    num_init_states = None


class Text(PointEnv):
    def __init__(self):
        super().__init__()
        spaces = {**self.observation_space.spaces, "task": gym.spaces.Text(20)}
        self.observation_space = gym.spaces.Dict(spaces)


class Discrete(PointEnv):
    def __init__(self):
        super().__init__()
        self.action_space = gym.spaces.Discrete(3)


class NoDict(PointEnv):
    def __init__(self):
        super().__init__()
        self.observation_space = gym.spaces.Box(0, 1, (8,))


class LacksColumn(PointEnv):
    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        return {"observation.state": observation["observation.state"][:3]}, info


class Exits(PointEnv):
    def __init__(self):
        raise SystemExit("the driver is not installed")


def make_point():
    return PointEnv()


REFUSALS = {
    "FailsToMake": r"cannot be made with env.kwargs=\{\} \(KeyError: 'no robot'\)",
    "FailsToReset": r"reset\(\) raised OSError: the robot is off",
    "FailsToStep": r"step\(\) raised ZeroDivisionError: the robot fell",
    "NoStates": r"num_init_states is None; it must be the number of stored init states",
    "Text": r"observation 'task' is Text\(.*; it must be a Box, and text belongs into the info",
    "Discrete": r"action_space is Discrete\(3\); it must be a Box",
    "NoDict": r"observation_space is Box\(.*; it must be a Dict",
    "LacksColumn": r"reset\(\) gave 'observation.environment_state' of shape None, not \(24,\)",
    "Exits": r"cannot be made .* \(SystemExit: the driver is not installed\)",
    "make_point": r"which is no class derived from gymnasium\.Env",
    "absent": r"cannot be loaded \(AttributeError: .*\): give it as 'module:class'",
}


def config_of(name, **algorithm):
    config = TrainConfig()
    config.env.entry_point = f"{__name__}:{name}"
    config.policy.type = "none"
    for key, value in {"residual_dims": [], **algorithm}.items():
        setattr(config.algorithm, key, value)
    return config


@pytest.mark.parametrize("name", REFUSALS)
def test_an_environments_class_is_refused_in_one_sentence(name):
    with pytest.raises(ConfigError, match=REFUSALS[name]) as refusal:
        check_environment(config_of(name))
    assert "\n" not in str(refusal.value)
    assert f"{__name__}:{name}" in str(refusal.value)


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"hidden_dims": [400_000, 400_000]}, r"networks would take at least .*hidden_dims"),
        ({"hidden_dims": [1 << 40]}, r"networks would take at least"),
        ({"batch_size": 1 << 40}, r"a batch [\d,]+ GB, and .* algorithm.batch_size=1099511627776"),
    ],
)
def test_what_cannot_fit_into_memory_is_refused_before_it_is_made(algorithm, words):
    with pytest.raises(ConfigError, match=words):
        check_environment(config_of("PointEnv", **algorithm))


def test_a_failed_start_leaves_no_folder(tmp_path, capsys):
    folder = tmp_path / "deep" / "run"
    args = ["train", f"--env.entry_point={__name__}:NoStates", "--policy.type=none"]
    assert main([*args, "--algorithm.residual_dims=[]", f"--output_dir={folder}"]) == 2
    assert "num_init_states" in capsys.readouterr().err
    assert not folder.parent.exists()


@pytest.mark.parametrize("task", ["../../x", "/etc/x", "..", "a/b", "x" * 500, "übung 1"])
def test_a_tasks_name_never_leads_out_of_the_caches_folder(task, tmp_path):
    config = config_of("PointEnv")
    config.env.task, config.output_dir = task, str(tmp_path / "runs" / "one")
    folder = offline_cache_folder(config)
    assert folder.parent == tmp_path / "runs" / "cache"
    assert folder.name not in ("", ".", "..")
    assert len(folder.name) < 120
    folder.mkdir(parents=True)


def test_a_ray_that_does_not_start_in_time_is_tried_again_and_is_one_sentence(monkeypatch):
    starts, enough = [], 3

    def late(*args, **kwargs):
        starts.append(args)
        if len(starts) == enough:
            return
        raise Exception("The current node timed out during startup.\nSee the logs.")

    monkeypatch.setattr(cluster.ray, "init", late)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert cluster.start_ray(TrainConfig())
    assert starts == [("local",)] * 3
    enough = 9
    with pytest.raises(ConfigError, match=r"Ray did not start on this machine \(See the logs\.\)"):
        cluster.start_ray(TrainConfig())
    assert len(starts) == 6

    def broken(*args, **kwargs):
        starts.append(args)
        raise RuntimeError("no such binary")

    monkeypatch.setattr(cluster.ray, "init", broken)
    with pytest.raises(ConfigError, match=r"Ray did not start on this machine \(no such binary\)"):
        cluster.start_ray(TrainConfig())
    assert len(starts) == 7


def test_a_ray_that_finds_no_home_names_it(monkeypatch, tmp_path):
    """It keeps its token there."""
    home = tmp_path / "file"
    home.touch()

    def init(*args, **kwargs):
        (pathlib.Path("~/.ray").expanduser()).mkdir()

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(ConfigError, match=rf"Not a directory.*: set HOME \({home}\) to a folder"):
        cluster.start_ray(TrainConfig())


def test_a_ray_of_one_s_own_outlives_the_terminal(monkeypatch):
    held = []

    def init(*args, **kwargs):
        held.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

    monkeypatch.setattr(cluster.ray, "init", init)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert cluster.start_ray(TrainConfig())
    assert held == [before | {signal.SIGHUP}]  # its processes inherit it
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


@pytest.mark.parametrize(
    ("command", "begins"), [("train", "start_ray"), ("pretrain", "running_algorithm")]
)
def test_a_full_disk_is_one_sentence_on_the_console(command, begins, tmp_path, capsys, monkeypatch):
    def fail(*args):
        pathlib.Path("/dev/full").write_text("x")

    monkeypatch.setattr(importlib.import_module(f"pld_ray.jobs.{command}"), begins, fail)
    folder = tmp_path / "run"
    argv = [command, "--env.entry_point=envs.point:PointEnv", "--tracking.enabled=false"]
    argv += ["--algorithm.calql_steps=5", "--runners.num_env_runners=0", f"--output_dir={folder}"]
    assert main(argv) == 2
    assert capsys.readouterr().err == (
        f"pld-ray: {folder} cannot be written: No space left on device. Free space or mend the "
        "folder, then start again\n"
    )


def test_a_token_that_is_not_shown_is_told_from_an_absent_cluster(monkeypatch, tmp_path):
    def absent(*args, **kwargs):
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr(cluster.ray, "init", absent)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at auto \(Could not find"):
        cluster.start_ray(TrainConfig(), "auto")
    monkeypatch.setattr(cluster_address, "SPEAK_S", 0.1)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    with port() as (number, server):
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{number}")
        with pytest.raises(ConfigError, match=rf"answers at auto \(.*:{number}: .* refused\)"):
            cluster.start_ray(TrainConfig(), "auto")
        server.listen()  # as a cluster does that wants to see the token
        with pytest.raises(ConfigError, match=r"RAY_AUTH_MODE is not set.*RAY_AUTH_MODE=token"):
            cluster.start_ray(TrainConfig(), "auto")
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        with pytest.raises(ConfigError, match="no Ray cluster answers at auto"):
            cluster.start_ray(TrainConfig(), "auto")


@contextlib.contextmanager
def port():
    """A port of this machine that is nobody else's, at which nothing listens yet."""
    with socket.socket() as server:
        server.bind(("", 0))
        yield server.getsockname()[1], server


def never(*args, **kwargs):
    raise AssertionError("Ray, which waits for minutes, was asked")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:{}", r".*:\d+: Connection refused"),  # Ray asks this machine's own address
        ("localhost:{}", r".*:\d+: Connection refused"),
        ("[::1]:{}", r".*:\d+: Connection refused"),
        ("0.0.0.0:{}", "Connection refused"),
        ("nobody.invalid:{}", ".*"),
        ("127.0.0.1", "Invalid address format: 127.0.0.1"),
        ("host:port", ".*"),
        ("x" * 70 + ".invalid:1", ".*"),
        ("auto", r".*:\d+: Connection refused"),
    ],
)
def test_an_address_at_which_nothing_listens_is_refused_at_once(
    address, reason, monkeypatch, tmp_path
):
    monkeypatch.setattr(cluster.ray, "init", never)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    others = functools.cache(frozenset)  # Rays of other people here: none
    monkeypatch.setattr(services, "find_gcs_addresses", others)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with port() as (number, _):
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray/ray_current_cluster").write_text(f"127.0.0.2:{number}")  # it is over
        address = address.format(number)
        with pytest.raises(ConfigError) as refusal:
            cluster.start_ray(TrainConfig(), address)
    said = rf"no Ray cluster answers at {re.escape(address)} \({reason}\): start one \(`ray start"
    assert re.match(said, str(refusal.value))
    assert "token" not in str(refusal.value)


@pytest.mark.parametrize("hangs_up", [False, True])
def test_an_address_at_which_no_ray_listens_is_refused_at_once(hangs_up, monkeypatch):
    """A dashboard, as it answers to what is not for it; a server that says nothing and closes."""
    monkeypatch.setattr(cluster.ray, "init", never)
    monkeypatch.setattr(cluster_address, "SPEAK_S", 60.0)  # what is silent for longer is asked
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    handler = socketserver.BaseRequestHandler if hangs_up else BaseHTTPRequestHandler
    with ThreadingHTTPServer(("", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.server_port}"
        with pytest.raises(ConfigError, match=r"answers at .*what listens there is no Ray"):
            cluster.start_ray(TrainConfig(), address)
        server.shutdown()


def test_what_ray_does_not_ask_is_left_to_it(monkeypatch):
    """A Ray of one's own, a client, and a port at which something listens that is slow to speak."""
    monkeypatch.setattr(cluster_address, "SPEAK_S", 0.1)
    joined = []
    monkeypatch.setattr(cluster.ray, "init", lambda address, **how: joined.append(address))
    with port() as (number, server):
        server.listen()
        given = ["local", "ray://127.0.0.1:1", f"127.0.0.1:{number}"]
        for address in given:
            assert cluster.start_ray(TrainConfig(), address)
        monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:1")
        assert cluster.start_ray(TrainConfig(), "auto")
    assert joined == [*given, "auto"]


@pytest.mark.parametrize("command", [["train"], ["train", "--dry_run"], ["pretrain"]])
def test_a_gpu_that_is_not_there_is_refused(command, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    folder = tmp_path / "run"
    argv = [*command, "--runners.num_gpus_per_learner=0.5", f"--output_dir={folder}"]
    assert main([*argv, "--algorithm.calql_steps=1"]) == 2
    error = capsys.readouterr().err
    assert "runners.num_gpus_per_learner=0.5: with runners.num_learners=0" in error
    assert not folder.exists()


@pytest.mark.parametrize("value", ["²", "0", "-1", "1e3", "9" * 12, "٣"])
def test_a_number_of_episodes_that_is_none_is_refused(value, capsys):
    assert main(["eval", "--checkpoint=x", f"--n_episodes={value}"]) == 2
    assert "--n_episodes" in capsys.readouterr().err


def test_what_the_system_refuses_is_told_with_the_file(tmp_path, capsys, monkeypatch):
    import importlib

    def fail(args):
        (tmp_path / "missing").read_text()

    monkeypatch.setattr(importlib.import_module("pld_ray.cli.ls"), "run", fail)
    assert main(["ls"]) == 2
    assert capsys.readouterr().err == f"pld-ray: {tmp_path}/missing: No such file or directory\n"


def test_observations_are_what_the_space_says():
    assert np.shape(PointEnv().reset()[0]["observation.state"]) == (8,)
