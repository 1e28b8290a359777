"""Frames for a reward classifier: episodes with a label for each frame, as one LeRobotDataset."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from envs.bootstrap import RenderingUnavailableError
from envs.experts import PickPlaceExpert
from pld_ray.columns import BASE_ACTION, SUCCESS, Columns
from pld_ray.config import ConfigError, TrainConfig
from pld_ray.config.start_check import check_start
from pld_ray.data.episode_writer import EpisodeWriter
from pld_ray.jobs.recording import recording_of
from pld_ray.rllib.of_run import algorithm_config
from pld_ray.rollout.classifier_reward import AfterSuccess
from pld_ray.rollout.control_clock import ControlClock
from pld_ray.rollout.episode import EpisodeBuilder
from pld_ray.rollout.factory import env_maker, make_base_policy, unjudged
from pld_ray.rollout.intervention import NOTHING, Intervenor, Turn
from pld_ray.rollout.live_view import LiveView, check_view, open_view
from pld_ray.rollout.make_intervenor import make_intervenor
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv, Observation


@dataclass(frozen=True)
class FrameGoal:
    """What is collected.

    Attributes:
        episodes: in the dataset.
        hold: steps for which an episode goes on after a success.
        init_states: start from the first `episodes` stored init states, not sampled placements.
        noise: standard deviation of what is added to every action but the gripper's, at most; that
            of an episode is drawn from [0, noise]. A real arm gets none, it would shake.
    """

    episodes: int
    hold: int = 10
    init_states: bool = False
    noise: float = 0.4


def collect_frames(
    config: TrainConfig,
    root: pathlib.Path,
    goal: FrameGoal,
    on_episode: Callable[[int, int], None] = lambda successes, frames: None,
) -> EpisodeWriter:
    """Play episodes in this process, and keep every frame with its label.

    The simulator's scripted expert, where there is one, and the base policy take turns, episode by
    episode; with `intervention.device` a person takes over whenever they like, and
    `intervention.view` shows what they do. A frame is a success if the environment says so, or from
    the moment on at which the person has pressed the key of success. Stopped at any moment, the
    same call goes on.

    Args:
        config: environment with cameras, base policy, person, seed.
        root: of the dataset.
        goal: what is wanted.
        on_episode: is told the success frames and all frames of each.

    Raises:
        ConfigError: the environment has no cameras, or cannot be used.
        DeviceError: the person's device or the viewer is not there.
        DataError: the folder holds something else.
    """
    check_start(config, learns=False)
    check_view(config.intervention)
    if config.env.robot:
        goal = replace(goal, noise=0.0)
    rate = config.intervention.rate(config.env.control_hz)
    about = {"init_states": "stored" if goal.init_states else "sampled", "hold": goal.hold}
    recording = recording_of(config, algorithm_config(config), actor="frames", **about)
    with contextlib.ExitStack() as opened:
        vector = open_scene(config, goal, opened)
        view = open_view(config.intervention)
        if view is not None:
            opened.callback(view.close)
        writer = opened.enter_context(EpisodeWriter(root, recording))
        rng = np.random.default_rng([config.seed, len(writer)])
        person = make_intervenor(config.intervention, vector, rng)
        if person is not None:
            opened.callback(person.close)
        env = InfosPerEnv(vector, None if rate is None else ControlClock(rate))
        player = Player(env, person, goal, rng, view)
        while len(writer) < goal.episodes:
            columns = player.play(len(writer))
            if columns is not None:
                writer.add(columns)
                labels = columns[SUCCESS]
                on_episode(int(labels.sum()), len(labels))
        writer.finish()
    return writer


def open_scene(
    config: TrainConfig, goal: FrameGoal, opened: contextlib.ExitStack
) -> BaseActionVectorEnv:
    """The one environment, whose episodes outlast a success, with the base policy.

    Args:
        config, goal: as for `collect_frames`.
        opened: closes it.

    Raises:
        ConfigError: it has no cameras, too few init states, or cannot be used.
    """
    try:
        scene = AfterSuccess(env_maker(unjudged(config.env.settings()))(), goal.hold)
        opened.callback(scene.close)
        check_cameras(scene)
        policy = make_base_policy(config.policy.settings(), scene.action_space)
        vector = BaseActionVectorEnv([scene], policy)
    except (ValueError, OSError, ImportError, RenderingUnavailableError) as error:
        raise ConfigError(str(error)) from error
    if goal.init_states and goal.episodes > scene.num_init_states:
        raise ConfigError(
            f"--episodes={goal.episodes}: {config.env.task} has {scene.num_init_states} stored "
            "init states"
        )
    return vector


def check_cameras(env: Any) -> None:
    """Raise ConfigError unless the observations hold images."""
    if not any(len(space.shape or ()) == 3 for space in env.observation_space.values()):
        raise ConfigError(
            "a reward classifier needs cameras: give --env.cameras=[image] or, with "
            "env.entry_point, an environment whose observations hold images"
        )


@dataclass
class Player:
    """Plays one environment, and labels what it sees.

    Attributes:
        env: whose episodes outlast a success.
        person: who may take over.
        goal: noise, and how long an episode outlasts a person's key.
        rng: of noise, placements and the expert.
        view: shows it.
    """

    env: InfosPerEnv
    person: Intervenor | None
    goal: FrameGoal
    rng: np.random.Generator
    view: LiveView | None = None
    _observation: Observation = field(default_factory=dict)

    def play(self, number: int) -> Columns | None:
        """One episode [L + 1, ...] whose `success` labels each step; None if it is not kept.

        Args:
            number: of the episode in the dataset, and the init state it starts from, if stored.
        """
        vector = self.env.unwrapped
        if self.goal.init_states:
            vector.set_init_states([number])
        if not self._observation:
            self._observation, _ = self.env.reset(seed=int(self.rng.integers(2**31)))
        else:  # the last episode is over: this step is the reset
            self._observation = self.env.step(np.zeros_like(self._observation[BASE_ACTION]))[0]
        scene = vector.envs[0]
        expert = PickPlaceExpert(scene) if hasattr(scene, "expert_view") and number % 2 else None
        if expert is not None:
            expert.reset(self.rng)
        if self.person is not None:
            self.person.begin(0)
        noise = self.rng.uniform(0.0, self.goal.noise)
        builder, labels, left = EpisodeBuilder(), list[bool](), self.goal.hold + 1
        intervened = False
        while True:
            turn = self._turn(intervened)
            observation, intervened = self._observation, 0 in turn.actions
            action = observation[BASE_ACTION].copy() if expert is None else expert.act()[None]
            action = turn.actions[0][None] if intervened else self._noisy(action, noise)
            action = np.clip(
                action, vector.single_action_space.low, vector.single_action_space.high
            )
            if self.view is not None:
                first = {key: values[0] for key, values in observation.items()}
                self.view.show(first, action[0], intervened)
            self._observation, reward, terminated, truncated, infos = self.env.step(action)
            marked = turn.verdicts.get(0) == "success" or left <= self.goal.hold
            left -= marked
            labels.append(marked or bool(infos[0]["is_success"]))
            over = bool(terminated[0] or truncated[0])
            ended = over or left <= 0 or turn.verdicts.get(0) in ("failure", "discard")
            row = (action[0], reward[0], ended and not truncated[0], truncated[0], 0.0, intervened)
            builder.add(observation, 0, *row)
            if not ended:
                continue
            if not over:
                vector.end_episodes([0])
            if "env_failure" in infos[0] or turn.verdicts.get(0) == "discard":
                return None
            if self.view is not None:
                self.view.end_episode(any(labels))
            columns = builder.finish(self._observation, 0, any(labels))
            return {**columns, SUCCESS: np.array([*labels, False])}

    def _turn(self, in_hand: bool) -> Turn:
        """What the person does; where they have let go, the base policy plans anew."""
        if self.person is None:
            return NOTHING
        turn = self.person.intervene(self._observation, np.ones(1, bool), 0)
        if in_hand and 0 not in turn.actions:
            self._observation = {**self._observation, **self.env.unwrapped.replan([0])}
        return turn

    def _noisy(self, action: np.ndarray, noise: float) -> np.ndarray:
        """With noise on all dimensions but grippers' [1, A]."""
        drawn = self.rng.normal(0.0, noise, action.shape).astype(np.float32)
        drawn[:, list(getattr(self.env.unwrapped.envs[0], "gripper_dims", ()))] = 0.0
        return action + drawn
