"""A reward classifier in place of an environment's reward, and episodes that outlast a success."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np

from pld_ray.networks.reward_classifier import TrainedClassifier, load_classifier
from pld_ray.rollout.env_group import MakeEnv


class Transparent(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper through which the environment's own attributes are seen."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


class ClassifierReward(Transparent):
    """The classifier's verdict is the reward, and ends the episode.

    The reward is 1, and the episode terminates, with the frame that makes `consecutive` positive
    ones in a row; else it is 0. `info["is_success"]` is that verdict; `info["true_success"]` says
    whether the environment itself has called the episode a success so far, which ends nothing: the
    simulation goes on until the classifier, or the horizon, ends it. An end that is no success (a
    fall) stays one.

    Args:
        env: observations with the classifier's cameras.
        classifier: trained.

    Raises:
        ClassifierError: other cameras, or images of another size.
    """

    def __init__(self, env: gym.Env[Any, Any], classifier: TrainedClassifier) -> None:
        super().__init__(env)
        spaces: Any = env.observation_space
        images = {k: s.shape for k, s in spaces.items() if len(s.shape or ()) == 3}
        classifier.check_cameras(images, "the environment")
        self.classifier = classifier
        self._in_a_row = 0
        self._true_success = False

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**how)
        self._in_a_row, self._true_success = 0, False
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        is_success = bool(info.get("is_success", False))
        self._true_success |= is_success
        cameras = self.classifier.network.shape.cameras
        images = {camera: observation[camera][None] for camera in cameras}
        (probability,) = self.classifier.network.probabilities(images).tolist()
        positive = probability >= self.classifier.threshold
        self._in_a_row = self._in_a_row + 1 if positive else 0
        fired = self._in_a_row >= self.classifier.consecutive
        ends = fired or (bool(terminated) and not is_success)
        true_success = None if hasattr(self.env.unwrapped, "asks_person") else self._true_success
        info = {**info, "is_success": fired, "true_success": true_success}
        return observation, float(fired), ends, bool(truncated), info


def with_classifier(make: MakeEnv, folder: str) -> gym.Env[Any, Any]:
    """An environment whose reward is the classifier's of that folder.

    Raises:
        ClassifierError: it is none, or of other cameras.
    """
    classifier, env = load_classifier(folder), make()
    try:
        return ClassifierReward(env, classifier)
    except ValueError:
        env.close()
        raise


def classified(make: MakeEnv, folder: str) -> MakeEnv:
    """A picklable function that makes one such environment."""
    return functools.partial(with_classifier, make, folder)


class AfterSuccess(Transparent):
    """Episodes go on for some frames after a success: more of them to learn from.

    Args:
        env: may be stepped after it has terminated in success.
        steps: after the first success.
    """

    def __init__(self, env: gym.Env[Any, Any], steps: int) -> None:
        super().__init__(env)
        self.steps, self._left = steps, steps

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        self._left = self.steps
        return self.env.reset(**how)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        began = self._left < self.steps or bool(info.get("is_success", False))
        if not began:
            return observation, float(np.float32(reward)), bool(terminated), bool(truncated), info
        over = self._left <= 0
        self._left -= 1
        return observation, float(np.float32(reward)), over, bool(truncated), info
