"""What a flag's text becomes, and values that a run could not learn with."""

from __future__ import annotations

import pytest

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.config.start_check import check_start


@pytest.mark.parametrize("text", ["false", "0.5", "010", "1:30", "null", "[1, 2]", "a=b", "2 # c"])
def test_an_environment_variable_is_the_text_as_it_stands(text):
    config = load_config(TrainConfig, [f"--placement.env_vars.MY_X={text}"])
    assert config.placement.env_vars == {"MY_X": text}


@pytest.mark.parametrize(("text", "value"), [('"true"', "true"), ("'5'", "5"), ('"', '"')])
def test_quotes_around_an_environment_variable_are_not_its_own(text, value):
    config = load_config(TrainConfig, [f"--placement.env_vars.MY_X={text}"])
    assert config.placement.env_vars == {"MY_X": value}


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--seed=010", r"seed='010': must be a whole number in"),
        ("--seed=0x10", r"seed='0x10': must be a whole number in"),
        (f"--seed=0x{'f' * 400}", r"seed='0xfff.*: must be a whole number in"),
        ("--seed=0b11", r"seed='0b11': must be a whole number in"),
        ("--total_steps=1:30", r"total_steps='1:30': must be a whole number in"),
        ("--algorithm.utd=1:30.5", r"algorithm.utd='1:30.5': must be a number in"),
        ("--algorithm.gamma=00.5", r"algorithm.gamma='00.5': must be a number in"),
        ("--policy.n_action_steps=010", r"n_action_steps='010': must be a whole number in"),
        ("--placement.env_runner.robot=010", r"env_runner={'robot': '010'}: must be a mapping"),
        ("--algorithm.hidden_dims=[010]", r"010 in line 1 would be a number in base 8 or 60"),
        ("--env.kwargs.size=1:30", r"1:30 in line 1 would be a number in base 8 or 60"),
    ],
)
def test_a_number_is_written_as_one(flag, message):
    with pytest.raises(ConfigError, match=message):
        load_config(TrainConfig, [flag])


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("+7", 7), ("1e3", 1000), ("1_000", 1000), (" 5 ", 5), ("2.0", 2), ("0.0", 0)],
)
def test_a_plain_number_is_read(text, value):
    assert load_config(TrainConfig, [f"--seed={text}"]).seed == value


@pytest.mark.parametrize("text", ["null", "None", "~"])
def test_a_number_that_may_be_missing_is(text):
    args = [f"--policy.n_action_steps={text}", "--placement.env_runner.robot=.5"]
    config = load_config(TrainConfig, args)
    assert config.policy.n_action_steps is None
    assert config.placement.env_runner == {"robot": 0.5}


@pytest.mark.parametrize(
    "key",
    [
        *("policy.path", "tracking.run_name", "norm_stats", "policy.n_action_steps"),
        *("algorithm.use_probing", "env.kwargs.size", "algorithm"),
    ],
)
def test_an_empty_text_is_not_the_default(key):
    """As of `--policy.path="$UNSET"`."""
    for args in ([f"--{key}="], [f"--{key}", ""]):
        with pytest.raises(ConfigError, match=f"--{key}= is empty: give a value, or null where"):
            load_config(TrainConfig, args)
    with pytest.raises(ConfigError, match=r"demo_path=\[''\]: must be"):
        load_config(TrainConfig, ["--demo_path="])


def test_a_path_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "my.yaml"
    file.write_text("output_dir: ~/run\ndemo_path: [~/a, b]\n")
    for path in (file, "~/my.yaml"):
        config = load_config(TrainConfig, [f"--config_path={path}", "--norm_stats=~/stats.json"])
        assert (config.output_dir, config.norm_stats) == (
            f"{tmp_path}/run",
            f"{tmp_path}/stats.json",
        )
        assert config.demo_path == [f"{tmp_path}/a", "b"]


@pytest.mark.parametrize("value", [-5.1, 2.5])
def test_exploration_begins_where_it_can_be_learnt(value):
    with pytest.raises(ConfigError, match=rf"log_std_init={value}: must be between log_std_min=-5"):
        load_config(TrainConfig, [f"--algorithm.log_std_init={value}"])
    for bound in (-5, 2):
        load_config(TrainConfig, [f"--algorithm.log_std_init={bound}"])


def test_an_encoders_weights_are_a_file_and_a_policys_a_folder(tmp_path):
    folder, file = tmp_path / "policy", tmp_path / "weights.safetensors"
    folder.mkdir()
    file.touch()

    def start(name, path):
        flags = [f"--algorithm.vision_encoder_name={name}"]
        flags += [f"--algorithm.vision_encoder_weights={path}"] * (path is not None)
        check_start(load_config(TrainConfig, flags))

    for name, path in (("policy", folder), ("policy", None), ("cnn", file), ("cnn", None)):
        start(name, path)
    with pytest.raises(ConfigError, match=r"weights=\S+: no such folder.*_name=policy reads the"):
        start("policy", file)
    with pytest.raises(ConfigError, match=r"vision_encoder_weights=\S+: no such file"):
        start("cnn", folder)
