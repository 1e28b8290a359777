from importlib.metadata import version

import pytest

from pld_ray.cli import main
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.explain import config_fields, explain, presets_with
from pld_ray.config.file import load_config
from pld_ray.config.keys import field_names
from pld_ray.options import choices_of
from pld_ray.sweep.config import SweepConfig

KEYS = [name for name in field_names(TrainConfig) if not name.endswith("*")]


def test_a_key_has_words_type_default_and_presets():
    assert explain("algorithm.utd").splitlines() == [
        "algorithm.utd",
        "  Gradient steps (critic updates) per stored environment step.",
        "",
        "  type     float",
        "  default  1.0",
        "  range    [0, 1000]",
        "  called   grad_steps_per_env_step by the specification",
        "  called   utd_ratio by LeRobot's SAC",
        "  presets",
        "    calql                  1",
        "    hilserl_dual           2",
        "    hilserl_fixed_gripper  2",
        "    hilserl_single         2",
        "    rlpd                   20",
        "    spec                   1",
    ]
    assert explain("--algorithm.utd") == explain("algorithm.utd")


@pytest.mark.parametrize("key", KEYS)
def test_every_key_and_group_can_be_explained(key):
    text = explain(key)
    assert text.startswith(key)
    words = text.partition("\n  presets")[0]
    assert max(len(line) for line in words.splitlines()) <= 100
    field = config_fields()[key]
    assert field.meaning


def test_a_group_lists_its_keys():
    text = explain("checkpoint")
    assert "What is kept of a run." in text
    assert "checkpoint.keep            Periodic checkpoints kept" in text


def test_a_key_below_a_mapping_is_explained_by_the_mapping():
    assert explain("env.kwargs.size") == explain("env.kwargs")


@pytest.mark.parametrize(
    ("key", "hint"),
    [("algorithm.udt", "algorithm.utd"), ("utd", "algorithm.utd"), ("polcy", "policy")],
)
def test_a_wrong_key_is_answered_with_the_closest_one(key, hint):
    with pytest.raises(ConfigError, match=f"key {key} does not exist; did you mean {hint}\\?"):
        explain(key)


FIELDS = [
    field for field in config_fields().values() if len(choices_of(field.hint, field.option)) > 1
]

ARM = [
    *("--env.robot.type=x", "--env.arm.model=x", "--env.arm.end_effector=x"),
    *("--env.arm.rest_pose={x: 0}", "--env.arm.bounds_low=[0, 0, 0]"),
    *("--env.arm.bounds_high=[1, 1, 1]", "--env.control_hz=10", "--runners.num_env_runners=0"),
]


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.key)
def test_every_listed_value_is_accepted_and_another_is_not(field):
    needs = {
        "algorithm.task_embedding": ["--algorithm.text_encoder_path=x"],
        "algorithm.actor_loss": ["--algorithm.success_imitation=0"],
        "algorithm.gripper": ["--algorithm.residual_dims=[]"],
        "algorithm.image_pooling": ["--algorithm.vision_encoder_name=policy"],
        "intervention.device": ["--runners.num_env_runners=0"],
        "policy.rtc": ["--policy.prefetch=true"],
    }
    needs |= {f.key: ARM for f in FIELDS if f.key.startswith("env.arm.")}
    for value in choices_of(field.hint, field.option):
        args = [f"--{field.key}={value}", *needs.get(field.key, [])]
        assert load_config(TrainConfig, args) is not None


def test_presets_that_set_a_key_are_known():
    assert presets_with("algorithm.calql_steps") == {"calql": 5000, "pld": 5000, "spec": 5000}


def test_help_names_every_group_and_how_to_ask_for_more(capsys):
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for group in ("env", "policy", "algorithm", "runners", "evaluation", "placement", "tracking"):
        assert f"  {group}.* " in text
    assert "--explain GROUP" in text
    assert "The frozen base policy." in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pld-ray {version('pld-ray')}\n"


def test_an_option_with_few_values_or_a_range_says_so():
    assert "  values   inline, pool" in explain("policy.placement")
    assert "  range    (0, 1]" in explain("algorithm.tau")
    assert "  range    [0, 60000] ms" in explain("policy.max_wait_ms")
    assert "torchvision:NAME" in explain("algorithm.vision_encoder_name")


SWEEP_KEYS = [name for name in field_names(SweepConfig) if not name.endswith("*")]


@pytest.mark.parametrize("key", [*SWEEP_KEYS, "algorithm.n_step", "--max_concurrent"])
def test_a_sweep_explains_its_own_keys_and_those_of_its_trials(key, capsys):
    assert main(["sweep", f"--explain={key}"]) == 0
    assert capsys.readouterr().out.startswith(key.removeprefix("--"))


def test_each_commands_help_lists_its_own_keys_and_names_itself(capsys):
    assert main(["sweep", "--help"]) == 0
    text = capsys.readouterr().out
    assert "pld-ray sweep --explain GROUP" in text
    assert "  max_concurrent " in text
    assert "  runners.*" not in text
    assert main(["acrlpd", "--help"]) == 0
    assert "pld-ray acrlpd --explain GROUP" in capsys.readouterr().out
