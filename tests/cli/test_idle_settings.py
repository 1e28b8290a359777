"""Settings that change nothing as the others are set are said, once, before a run begins."""

from __future__ import annotations

import pytest

from pld_ray.cli import main
from pld_ray.config import TrainConfig
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig, config_class_of
from pld_ray.config.file import config_path, dump_config, load_config, read_mapping
from pld_ray.config.idle import NEEDS, idle_options
from pld_ray.config.keys import field_names
from pld_ray.config.presets import PRESETS, preset_names


def idle(flags, config_class=TrainConfig, learns=True):
    """What is said of a configuration, as a command line gives it."""
    return idle_options(load_config(config_class, flags), config_path(flags), learns)


@pytest.mark.parametrize(
    ("flag", "needs"),
    [
        ("algorithm.calql_alpha=2.0", "algorithm.calql_steps above 0"),
        ("algorithm.proximal_range=0.5", "algorithm.proximal_penalty above 0"),
        ("algorithm.grasp_penalty=1.0", "algorithm.gripper=discrete"),
        (
            "algorithm.residual_scale_init=0.5",
            "algorithm.residual_scale_schedule=linear or success",
        ),
        ("algorithm.vision_encoder_weights='w.pt'", "algorithm.vision_encoder_name"),
        ("algorithm.text_encoder_path='text'", "algorithm.task_embedding=text"),
        ("policy.replicas=3", "policy.placement=pool"),
        ("env.image_size=64", "env.cameras"),
        ("norm_stats_mode='quantile'", "norm_stats"),
        ("demo_episodes='all'", "demo_path"),
        (
            "intervention.fixed_dims=[3]",
            "intervention.device=keyboard, keyboard_ee, gamepad or space",
        ),
        ("runners.publish_interval=7", "runners.sampling=asynchronous"),
        ("runners.step_timeout_s=5.0", "runners.vectorization=subprocess"),
    ],
)
def test_a_setting_without_an_effect_is_named_with_what_it_goes_with(flag, needs):
    (said,) = idle([f"--{flag.replace(chr(39), '')}"])
    assert said.startswith(f"{flag} changes nothing: it goes with {needs}")


def test_only_what_is_missing_is_named():
    flags = ["--algorithm.vision_encoder_name=cnn", "--algorithm.random_shift_pad=2"]
    (said,) = idle(flags)
    assert said.endswith("it goes with algorithm.freeze_vision_encoder=false")
    assert not idle([*flags, "--algorithm.freeze_vision_encoder=false"])
    wait = ["--placement.wait_s=5", "--placement.check=false"]
    assert idle(wait) == ["placement.wait_s=5.0 changes nothing: it goes with placement.check=true"]
    gaussian = ["--algorithm.critic_smoothing=0.75", "--algorithm.critic_atoms=1"]
    assert idle(gaussian)[0].endswith("it goes with algorithm.critic_atoms of at least 2")
    assert not idle([gaussian[0], "--algorithm.critic_atoms=2"])
    steps = ["--algorithm.collection_steps=9", "--demo_path=x"]
    assert idle(steps)[0].endswith("it goes with no demo_path")


def test_a_flag_may_switch_off_what_a_file_sets_up(tmp_path):
    for config_class in (TrainConfig, ACRLPDTrainConfig):
        assert not idle([], config_class)
    off = "--algorithm.calql_steps=0"
    assert not idle(["--config_path=calql", off])
    assert not idle(["--config_path=tabletop_scratch"])  # it prepares a person
    own = tmp_path / "own.yaml"
    own.write_text("algorithm: {calql_steps: 5, calql_alpha: 2.0, proximal_range: 0.5}\n")
    told = [said.partition("=")[0] for said in idle([f"--config_path={own}", off])]
    assert told == ["algorithm.proximal_range"]
    told = idle([f"--config_path={own}", off, "--algorithm.calql_alpha=3"])
    assert told[0].startswith("algorithm.calql_alpha=3.0 changes nothing")
    own.write_text(dump_config(load_config(TrainConfig, [f"--config_path={own}"])))
    assert len(idle([f"--config_path={own}"])) == 1


@pytest.mark.parametrize("name", preset_names())
def test_what_a_preset_sets_is_set_for_something(name):
    config_class = config_class_of(read_mapping(PRESETS / f"{name}.yaml"))
    assert not idle([f"--config_path={name}"], config_class)


def test_every_key_of_the_table_is_an_option():
    known = {*field_names(TrainConfig), *field_names(ACRLPDTrainConfig)}
    for group, names, needs in NEEDS:
        assert {*(group + name for name in names.split()), *needs} <= known


def test_it_is_said_once_before_a_run_begins(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text("")
    out = f"--output_dir={tmp_path}"
    said = "pld-ray: policy.replicas=3 changes nothing: it goes with policy.placement=pool\n"
    for dry in ([], ["--dry_run"]):
        assert main(["train", "--policy.replicas=3", out, *dry]) == 2
        told = capsys.readouterr().err
        assert told.startswith(said)
        assert told.count("\n") == 2
    assert main(["train", "--policy.replicas=3", "--print_config"]) == 0
    assert not capsys.readouterr().err


def test_a_recording_has_no_use_for_settings_of_training(tmp_path, capsys):
    own = tmp_path / "own.yaml"
    own.write_text("total_steps: 5\ncheckpoint: {keep: 7}\n")  # of a run
    flags = [f"--config_path={own}", "--output_dir=x", "--demo_path=gone", "--demo_episodes=all"]
    told = "changes nothing: it goes with pld-ray train\n"
    assert main(["collect", f"--root={own}", *flags]) == 2
    first, second, third, _ = capsys.readouterr().err.splitlines(keepends=True)
    assert first == f"pld-ray: output_dir='x' {told}"
    assert second == f"pld-ray: demo_path=['gone'] {told}"
    assert third == f"pld-ray: demo_episodes='all' {told}"
