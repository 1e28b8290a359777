"""What another gymnasium environment may leave out, and what it is told when it may not."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from fragile import FragileEnv
from toy import CountingEnv, CountingPolicy

from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.file import dump_config, read_stored
from pld_ray.config.residual_sac import ResidualSACParams
from pld_ray.evaluation.play import play_init_states
from pld_ray.rllib.config import ResidualSACConfig
from pld_ray.rollout.entry_point import can_be_filmed, check_observation, make_checked
from pld_ray.rollout.env_group import EnvFailedError, InProcessEnvs
from pld_ray.rollout.factory import task_instructions
from pld_ray.rollout.messages import SampleRequest
from pld_ray.rollout.streams import FinishedEpisodes, Streams
from pld_ray.rollout.subprocess_envs import SubprocessEnvs
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv

POINT = "envs.point:PointEnv"


class Plain(CountingEnv):
    """All that the documentation asks for, and as wrong as it is told to be."""

    metadata = {"render_modes": ["rgb_array"]}
    num_init_states = 9

    def __init__(self, leaves_out=(), wrong=None, claims=None, render_mode=None) -> None:
        super().__init__(length=3)
        self.leaves_out, self.wrong, self.claims = leaves_out, wrong, claims

    def _info(self):
        info = {"task": "count", "is_success": True, "init_state_id": self.init_state_id}
        if self.claims is not None:
            info["init_state_id"] = self.claims
        return {name: value for name, value in info.items() if name not in self.leaves_out}

    def _observation(self):
        observation = super()._observation()
        if self.wrong == "nan":
            observation["observation.state"][1] = np.nan
        if self.wrong == "dtype":
            observation["observation.state"] = observation["observation.state"] + 0.7j
        return observation

    def render(self):
        raise NotImplementedError("no paint")


def vector(**kwargs):
    return InfosPerEnv(BaseActionVectorEnv([lambda: Plain(**kwargs)], CountingPolicy()))


@pytest.mark.parametrize(
    "kwargs", [{}, {"leaves_out": ("init_state_id", "task")}, {"claims": 0}, {"claims": -1}]
)
def test_which_init_state_is_played_is_who_asks_not_what_the_environment_says(kwargs):
    env = vector(**kwargs)
    results = play_init_states(env, [4, 2])
    assert {state: result.success for state, result in results.items()} == {4: True, 2: True}


def test_an_episode_that_ends_without_an_outcome_says_what_the_environment_lacks():
    env = vector(leaves_out=("is_success",))
    with pytest.raises(EnvFailedError, match="its info has no 'is_success'"):
        play_init_states(env, [4])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("nan", r"reset\(\) gave 'observation.state' with a NaN"),
        ("dtype", r"'observation.state' as complex64, and its space says float32"),
    ],
)
def test_observations_that_are_not_as_their_space_says_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        make_checked(f"{__name__}:Plain", {"wrong": wrong})
    make_checked(f"{__name__}:Plain", {})


def test_the_instruction_is_what_the_environment_says_while_it_is_played():
    settings = {"entry_point": POINT, "kwargs": {"side": 0.5}}
    assert task_instructions(settings) == ["reach the goal"]
    assert task_instructions({"entry_point": f"{__name__}:Plain"}) == ["count"]


def test_nothing_is_made_for_an_instruction_that_nobody_reads():
    assert task_instructions({"entry_point": f"{__name__}:NoSuchEnv"}, read=False) == [""]
    spec = ResidualSACConfig().environment(env_config={"entry_point": f"{__name__}:NoSuchEnv"})
    assert spec.get_default_rl_module_spec().model_config["tasks"] == [""]


@pytest.mark.parametrize(("value", "fits"), [(255, True), (256, False), (-1, False)])
def test_whole_numbers_may_be_wider_than_their_space_if_they_fit(value, fits):
    spaces = gym.spaces.Dict({"picture": gym.spaces.Box(0, 255, (2,), np.uint8)})
    observation = {"picture": np.int64([value, 0])}
    if fits:
        check_observation(observation, spaces, "env")
        return
    with pytest.raises(ValueError, match="'picture' as int64, and its space says uint8"):
        check_observation(observation, spaces, "env")


def test_tensors_are_observations_too():
    spaces = gym.spaces.Dict({"state": gym.spaces.Box(-1, 1, (2,), np.float32)})
    check_observation({"state": torch.zeros(2)}, spaces, "env")


def test_fields_of_liberos_environments_are_refused_beside_another():
    config = TrainConfig()
    config.env.entry_point = POINT
    config.validate()
    config.env.episode_length, config.env.cameras = 10, ["image"]
    with pytest.raises(ConfigError) as refused:
        config.validate()
    said = str(refused.value)
    assert said.startswith("env.cameras, env.episode_length: of LIBERO's environments; give what")
    assert said.endswith("beside it --env.cameras=[] --env.episode_length=null")


def test_a_stored_run_with_what_did_nothing_is_read(tmp_path):
    config = TrainConfig()
    config.env.entry_point, config.env.episode_length = POINT, 10
    config.algorithm.log_std_init = config.algorithm.log_std_min - 1.0
    (tmp_path / "config.yaml").write_text(dump_config(config))
    read = read_stored(tmp_path / "config.yaml")
    assert read.env.episode_length is None
    assert read.algorithm.log_std_init == config.algorithm.log_std_min


def test_only_what_draws_pictures_is_filmed():
    assert not can_be_filmed(POINT)
    assert can_be_filmed(f"{__name__}:Plain")
    assert can_be_filmed("envs.disturbed:DisturbedEnv")


def test_a_picture_that_cannot_be_drawn_elsewhere_is_an_error_and_no_picture():
    group = SubprocessEnvs([Plain])
    try:
        with pytest.raises(EnvFailedError, match="no paint"):
            group.render(0)
    finally:
        group.close()


class Looker:
    """An expert that makes its environment fail once."""

    def __init__(self, env: gym.Env, fails: list[bool]) -> None:
        self.env, self.fails = env, fails

    def reset(self, rng) -> None:
        self.env.looked_at = True

    def act(self) -> np.ndarray:
        failing = bool(self.fails) and self.env.steps == 2 and self.fails.pop()
        return np.float32([0.75 if failing else 0, 0, 0])


class Still:
    """An actor that is not asked."""

    residual_scale = 1.0


def test_an_expert_sees_the_environment_that_replaces_a_failed_one():
    env = InfosPerEnv(BaseActionVectorEnv(InProcessEnvs([FragileEnv]), CountingPolicy()))
    observation, _ = env.reset(seed=0)
    inner, fails, made = env.unwrapped, [True], []

    def make_expert(i):
        made.append(Looker(inner.envs[i], fails))
        return made[-1]

    space, rng = inner.single_action_space, np.random.default_rng(0)
    params = ResidualSACParams()
    streams = Streams(observation, space, params, Still(), rng, True, make_expert)
    first = inner.envs[0]
    finished = FinishedEpisodes()
    request = SampleRequest(1, base_only=True, expert=True)
    for _ in range(12):
        streams.step(env.step, request, 0, finished)
    assert finished.num_env_failures == 1
    assert inner.envs[0] is not first
    assert made[-1].env is inner.envs[0]
    assert inner.envs[0].looked_at
    assert len(finished.summaries) >= 1
