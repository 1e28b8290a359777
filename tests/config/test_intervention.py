"""Who may intervene: what is refused before anything starts."""

import pytest

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import load_config


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--intervention.device=spacemouse"], "intervention.device='spacemouse': must be none"),
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
