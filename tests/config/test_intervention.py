"""Who may intervene: what is refused before anything starts."""

import pytest

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config
from pld_ray.config.start_check import check_start


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--intervention.device=joystick"], "intervention.device='joystick': must be none"),
        (["--intervention.device=scripted", "--runners.vectorization=subprocess"],
         "set runners.vectorization=in_process"),
        (["--intervention.device=keyboard"], "set runners.num_env_runners=0 and"),
        (["--intervention.device=gamepad", "--runners.num_env_runners=0",
          "--runners.num_envs_per_env_runner=2"], "set runners.num_env_runners=0 and"),
        (["--intervention.hold_steps=0"], "intervention.hold_steps=0: must be"),
        (["--intervention.probability=1.5"], "intervention.probability=1.5: must be"),
    ],
)  # fmt: skip
def test_settings_that_exclude_each_other_are_refused(flags, message):
    with pytest.raises(ConfigError) as error:
        load_config(TrainConfig, flags)
    assert message in str(error.value)


def test_one_person_at_one_environment_of_this_process():
    flags = ["--intervention.device=keyboard", "--runners.num_env_runners=0"]
    assert load_config(TrainConfig, flags).intervention.device == "keyboard"
    at_the_robot = ["--runners.num_env_runners=1", "--placement.env_runner={robot: 1}"]
    assert load_config(TrainConfig, [flags[0], *at_the_robot]).runners.num_env_runners == 1
    with pytest.raises(ConfigError, match="one person at one environment"):
        load_config(TrainConfig, [flags[0], "--runners.num_env_runners=2", at_the_robot[1]])


HG_DAGGER = ["--config_path=hg_dagger"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["calql_steps=5", "offline_episodes=1"], "calql_steps=5: must be 0 with actor_loss"),
        (["gripper=discrete", "residual_dims=[1,1,1,1,1,1,0]"], "gripper='discrete': must be cont"),
        (["success_imitation=0.1"], "success_imitation=0.1: must be 0 with actor_loss=hg_dagger"),
        (["residual_penalty=0.1"], "residual_penalty=0.1: must be 0 with actor_loss=hg_dagger"),
        (
            ["proximal_penalty=0.1", "ema_decay=0.9"],
            "proximal_penalty=0.1: must be 0 with actor_loss=hg_dagger",
        ),
        (["vision_encoder_name=cnn"], "shared_encoder=True: must be false with actor_loss"),
        (["state_encoder_hidden_dim=8"], "shared_encoder=True: must be false with actor_loss"),
        (["actor_loss=dagger"], "algorithm.actor_loss='dagger': must be sac or hg_dagger"),
    ],
)
def test_what_needs_a_critic_is_refused_where_none_is_learnt(flags, message):
    with pytest.raises(ConfigError) as error:
        load_config(TrainConfig, [*HG_DAGGER, *(f"--algorithm.{flag}" for flag in flags)])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "imitates a person, and there is none: set intervention.device, or name demonstr"),
        (["--intervention.device=scripted", "--algorithm.offline_episodes=3"],
         "algorithm.offline_episodes=3: must be 0 with algorithm.actor_loss=hg_dagger"),
        (["--intervention.device=scripted", "--pretrained_critic=x"],
         "pretrained_critic is of no use with algorithm.actor_loss=hg_dagger"),
    ],
)  # fmt: skip
def test_a_start_needs_somebody_to_imitate(flags, message):
    config = load_config(TrainConfig, [*HG_DAGGER, *flags])
    with pytest.raises(ConfigError) as error:
        check_start(config)
    assert message in str(error.value)


@pytest.mark.parametrize("flags", [["--intervention.device=scripted"], ["--demo_path=x"]])
def test_a_person_or_demonstrations_are_enough(flags):
    check_start(load_config(TrainConfig, [*HG_DAGGER, *flags]))
    check_start(load_config(TrainConfig, HG_DAGGER), learns=False)
