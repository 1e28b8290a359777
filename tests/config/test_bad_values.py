"""Values and files that a run, a sweep or an RLlib user must be refused, each in one sentence."""

from __future__ import annotations

import pytest

from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.config.keys import field_names
from pld_ray.config.start_check import check_start
from pld_ray.options import fields_of
from pld_ray.sweep.config import SweepConfig, load_sweep
from tests import fuzz

ASYNCHRONOUS = ["--runners.sampling=asynchronous", "--runners.num_env_runners=0"]
NEVER_VALIDATED = ["--evaluation.stop_success=0.9", "--evaluation.interval_steps=0"]


def start(args):
    check_start(load_config(TrainConfig, args))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--runners.sampling=foo"], "runners.sampling='foo': must be synchronous, pipelined or"),
        (["--runners.publish_interval=0"], r"publish_interval=0: must be a whole number in \[1,"),
        (["--runners.max_staleness=1"], "max_staleness=1: must be null or at least publish_inter"),
        (ASYNCHRONOUS, "sampling=asynchronous needs env runners"),
        (NEVER_VALIDATED, "interval_steps=0 makes none before the end: set an interval"),
        (["--runners.num_env_runners=1000000000"], "runners.num_env_runners=1000000000: must"),
        (["--runners.num_cpus_per_env_runner=-1"], "num_cpus_per_env_runner=-1.0: must"),
        (["--runners.num_cpus_per_env_runner=0.00001"], "at least 0.0001, Ray's least share"),
        (["--runners.num_gpus_per_learner=1.5"], "must be a whole number above 1"),
        (["--runners.step_timeout_s=-1"], "runners.step_timeout_s=-1.0: must"),
        (["--runners.stall_timeout_s=.nan"], "runners.stall_timeout_s=nan: must"),
        (["--policy.deadline_s=.nan"], "policy.deadline_s=nan: must"),
        (["--policy.max_wait_ms=-1"], r"max_wait_ms=-1.0: .*number in \[0, 60000\] ms"),
        (["--policy.max_batch_size=0"], "policy.max_batch_size=0: must"),
        (["--policy.n_action_steps=0"], "policy.n_action_steps=0: must .*, or null"),
        (["--output_dir=s3://bucket/x"], "output_dir=s3://bucket/x: must be .* mount the bucket"),
        (["--offline_cache=file:///mnt/c"], "offline_cache=file:///mnt/c: must be a path on this"),
        (["--pretrained_critic=gs://b/c"], "pretrained_critic=gs://b/c: must be a path on this"),
        (["--policy.path=nowhere"], "policy.path=nowhere: no such folder"),
        (["--policy.type=none"], "offline_episodes=10 with policy.type=none: nobody collects succ"),
        (["--policy.type=none", "--intervention.device=scripted"], "none: nobody collects succ"),
        (["--placement.env_runner={a: -1}"], "placement.env_runner={'a': -1.0}: must"),
        (["--placement.env_runner={a: null}"], "placement.env_runner={'a': None}: must"),
        (["--placement.learner={CPU: 1}"], "CPU is no custom resource"),
        (["--placement.working_dir=nowhere"], "placement.working_dir=nowhere: no such folder"),
        (["--seed=12345678901234567890"], "seed=12345678901234567890: must be a whole number"),
        (["--seed=\u00b2"], "seed='\u00b2': must be a whole number"),
        (["--algorithm.utd=inf"], "algorithm.utd='inf': must be a number"),
        (["--algorithm.utd=.inf"], "algorithm.utd=inf: must be a number"),
        (["--algorithm.residual_scale=.inf"], "residual_scale=inf: must"),
        (["--algorithm.log_alpha_min=.nan"], "log_alpha_min=nan: must"),
        (["--algorithm.batch_size=1e20"], "batch_size=1000.*: must"),
        (["--algorithm.hidden_dims=[0]"], r"hidden_dims=\[0\]: must be a list of 1 to 16 whole"),
        (["--algorithm.text_encoder_path=nowhere"], "text_encoder_path=nowhere: no such folder"),
        (["--algorithm.vision_encoder_weights=nowhere"], "weights=nowhere: no such file"),
        (["--env.kwargs={foo: 1}"], "env.kwargs are the arguments of env.entry_point"),
        (["--env.task=../../x"], r"env.task='../../x': must be a name"),
        ([f"--env.task={'x' * 300}"], "env.task='xxx.*: must be a name"),
        (["--env.task=open_the_door"], "Unknown task 'open_the_door'"),
        ([f"--output_dir={'x' * 300}"], "output_dir='xxx.*: must be a path"),
        (["--output_dir=pyproject.toml"], "pyproject.toml is a file, not a folder"),
        (["--seed=1", "--seed=2"], "--seed is given twice"),
        (["--seed"], "--seed needs a value"),
        (["seed=1"], "'seed=1' is no flag: settings are given as --key=value"),
        (["--algorithm=3"], "algorithm is a group"),
        (["--algorithm.hidden_dims=[1"], r"hidden_dims=\[1 is not valid YAML"),
    ],
)
def test_a_bad_value_of_a_run_is_one_sentence(args, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        start(args)
    fuzz.check_sentence(str(refusal.value), "")


@pytest.mark.parametrize(
    "flags",
    [
        ["--algorithm.offline_episodes=0"],
        ["--demo_path=x"],
        ["--env.entry_point=envs.point:PointEnv"],
        ["--offline_cache=tests"],  # there may be successes in it
    ],
)
def test_a_start_without_a_base_policy_needs_somebody_who_may_succeed(flags):
    start(["--policy.type=none", *flags])


def test_a_robot_and_who_only_plays_may_have_no_base_policy():
    config = load_config(TrainConfig, ["--policy.type=none"])
    check_start(config, learns=False)
    config.env.robot = {"type": "so101_follower"}
    check_start(config)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("metric: foo", "metric='foo': must be eval/residual_success or best_success"),
        ("name: ..", "name='..': must be a name"),
        ("name: a/b", "name='a/b': must be a name"),
        ("space: {algorithm.n_step: {randint: [0.2, 0.9]}}", "must be whole numbers"),
        ("space: {algorithm.n_step: {uniform: [1, 5]}}", "n_step=2.47.*: must be a whole number"),
        ("space: {algorithm.n_step: {grid: [null]}}", "grid: algorithm.n_step=None: must"),
        ("space: {algorithm.utd: {grid: [1, .nan]}}", "space="),
        (
            "space: {algorithm.tau: {uniform: [0.5, 2]}}",
            "uniform: algorithm.tau=1.05.*: must",
        ),
        ("space: {algorithm.tau: {loguniform: [1, .inf]}}", "space="),
        ("space: {algorithm.utd: {grid: [.inf]}}", "space="),
        ("variants: {a: {algorithm.tau: 3}}", "variants.a: algorithm.tau=3.0: must"),
        ("set: {algorithm.tau: 3}", "set: algorithm.tau=3.0: must"),
        ("num_samples: null", r"num_samples=None: must be a whole number in \[1, 10000\]"),
        ("num_samples: 1000000000", "num_samples=1000000000: must"),
        (f"seeds: {list(range(200))}\nnum_samples: 100", "20,000 trials, and 10,000 are the limit"),
        ("resources_per_trial: {a: -1}", "resources_per_trial={'a': -1.0}: must"),
        ("resources_per_trial: {GPU: 1}", "GPU is no custom resource"),
        ("stop: {success: .nan}", "stop.success=nan: must"),
        ("stop: {wall_time_s: -1}", "stop.wall_time_s=-1.0: must"),
        ("scheduler: null", "scheduler=None: must be a mapping"),
        ("seeds: [0, 0]", "different whole numbers"),
        ("output_dir: s3://bucket/sweep", "output_dir=s3://bucket/sweep: must be a path on this"),
    ],
)
def test_a_bad_value_of_a_sweep_is_one_sentence(body, message, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(body + ("" if "space" in body else "\nspace: {algorithm.utd: {grid: [1]}}"))
    with pytest.raises(ConfigError, match=message) as refusal:
        load_sweep([str(file)])
    fuzz.check_sentence(str(refusal.value), "")


def test_a_pool_has_the_size_that_the_command_line_has():
    from pld_ray.pool import PoolSpec

    assert PoolSpec().max_batch_size == TrainConfig().policy.max_batch_size == 16


FINE = {"empty"}
"""Odd, and yet a configuration."""


@pytest.mark.parametrize("name", sorted(set(fuzz.ODD_FILES) - FINE))
def test_each_odd_file_is_refused(name, tmp_path):
    file = tmp_path / "odd.yaml"
    file.write_bytes(fuzz.ODD_FILES[name])
    with pytest.raises(ConfigError, match=r"odd\.yaml"):
        load_config(TrainConfig, [f"--config_path={file}"])


@pytest.mark.parametrize(
    "text",
    [
        *("seed: 010", "total_steps: 1:30", "env: {task: 012}", 'seed: !!int "010"'),
        *("env: {kwargs: {a: [-0_7]}}", "algorithm: {utd: 1:30.5}", "env: {kwargs: {017: 1}}"),
    ],
)
def test_a_number_in_base_8_or_60_is_refused(text, tmp_path):
    file = tmp_path / "odd.yaml"
    file.write_text(f"# first\n{text}\n")
    message = r"odd\.yaml is not valid YAML: \S+ in line 2 would be a number in base 8 or 60"
    with pytest.raises(ConfigError, match=message):
        load_config(TrainConfig, [f"--config_path={file}"])


def test_other_numbers_are_read_as_they_were(tmp_path):
    file = tmp_path / "fine.yaml"
    file.write_text(
        "{seed: 0, total_steps: 1_000, env: {task: '012', entry_point: 'envs.point:PointEnv', "
        "kwargs: {id: 0xff, x: -0.5}}}"
    )
    config = load_config(TrainConfig, [f"--config_path={file}", "--algorithm.tau=1e-4"])
    assert (config.seed, config.total_steps, config.algorithm.tau) == (0, 1000, 1e-4)
    assert config.env.task == "012"
    assert config.env.kwargs == {"id": 255, "x": -0.5}
    config = load_config(TrainConfig, ["--algorithm.target_entropy=NULL", "--seed='3'"])
    assert (config.algorithm.target_entropy, config.seed) == (None, 3)


def test_malformed_files_are_refused_in_words(tmp_path):
    counts = fuzz.read_malformed(tmp_path)
    assert counts.total() >= 200
    assert counts["refused"] > 150


def test_no_key_takes_null_nan_or_a_group_that_is_none(tmp_path):
    """The cheap part of `python -m tests.fuzz`: each key of a run and of a sweep, in a file."""
    known = {TrainConfig: start, SweepConfig: None}
    for config_class in known:
        for field in fields_of(config_class):
            for text in ("null", ".nan", "12345678901234567890", "{a: [-1]}"):
                file = tmp_path / "file.yaml"
                file.write_text(fuzz.nested(field.key, text))
                try:
                    load_config(config_class, [f"--config_path={file}"])
                except ConfigError as error:
                    fuzz.check_sentence(str(error), field.key.partition(".")[0])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["train", "foo"], "pld-ray: 'foo' is no flag: settings are given as --key=value"),
        (["eval", "--checkpoint=a", "--checkpoint=b"], "pld-ray: --checkpoint is given twice"),
        (["eval", "--checkpoint"], "pld-ray: --checkpoint needs a value"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(argv, message, capsys):
    assert main(argv) == 2
    told = capsys.readouterr().err
    assert told.startswith(message)
    assert told.count("\n") == 1


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_whatever_is_accepted_starts():
    assert len(field_names(TrainConfig)) > 100
    assert fuzz.main(["--start"]) == 0
