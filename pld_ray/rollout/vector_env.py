"""The vector environment that carries the base policy's action in its observation."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from pld_ray.columns import BASE_ACTION, POLICY_FEATURES
from pld_ray.policies import BasePolicy, ChunkCache
from pld_ray.policies.lerobot_names import missing_observations
from pld_ray.rollout.control_clock import ControlClock
from pld_ray.rollout.env_group import (
    Command,
    EnvFailedError,
    EnvGroup,
    InProcessEnvs,
    Outcome,
    checked_spaces,
)
from pld_ray.rollout.unread_columns import tell_unread

Observation = dict[str, np.ndarray]


class BaseActionVectorEnv(VectorEnv):
    """N environments as one vector; the base policy is asked once per step.

    Each observation is the environment's own plus `base_action` [A] float32: what the frozen
    policy would do there, clipped to the action space, and for a policy with features
    `observation.features` [F] float32. Because it is part of the observation, the
    final observation of a truncated episode has one too, and training, evaluation and any stock
    RLlib code see the same thing.

    Autoreset is NEXT_STEP: the step after an episode's end resets that environment, ignores its
    action and returns reward 0. An environment that fails is replaced by its group: its episode
    ends truncated, with the last observation again and `info["env_failure"]` saying what happened;
    it must not be stored. The next step resets the replacement, to the same init state if one was
    asked for.

    Args:
        envs: a group, or environments with equal spaces; the observation space is a `Dict`.
        base_policy: the frozen policy, inline or a pool's client.
        prefetch: ask for the next chunk one step ahead, see `ChunkCache`.

    Raises:
        ValueError: the policy's action dimension or a required observation differs from the env.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self, envs: EnvGroup | Sequence[gym.Env], base_policy: BasePolicy, prefetch: bool = False
    ) -> None:
        self.group = InProcessEnvs(envs) if isinstance(envs, Sequence) else envs
        self.num_envs = self.group.num_envs
        observations, actions = check_policy_matches(
            base_policy, self.group.observation_space, self.group.action_space
        )
        self.single_action_space = self._actions = actions
        self.single_observation_space = with_base_policy(base_policy, observations, actions)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.prefetch = prefetch
        self.play(base_policy)
        self._init_states: deque[int] = deque()
        self._options: list[dict[str, int] | None] = [None] * self.num_envs
        self._done = np.zeros(self.num_envs, dtype=bool)
        self._failed = np.zeros(self.num_envs, dtype=bool)
        self._tasks = [""] * self.num_envs
        self._last: list[Observation] = []

    @property
    def envs(self) -> list[gym.Env]:
        """The environments of this process; those in processes of their own cannot be reached."""
        return getattr(self.group, "envs", [])

    @property
    def robots(self) -> list[Any]:
        """The `RobotEnv`s among them, at most one."""
        return [env.unwrapped for env in self.envs if hasattr(env.unwrapped, "asks_person")]

    def play(self, policy: BasePolicy) -> None:
        """Ask this policy from now on; chunks begin anew."""
        self.base_policy = policy
        options = {"prefetch": True} if self.prefetch else {}
        self.chunks = ChunkCache(policy, self.num_envs, **options)

    def set_init_states(self, init_state_ids: Sequence[int]) -> None:
        """Start the next episodes from these stored init states, in order; then sample again."""
        self._init_states = deque(int(i) for i in init_state_ids)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        observation, infos = self.reset_all(seed)
        return observation, self._info_dict(infos)

    def reset_all(
        self, seed: int | Sequence[int | None] | None = None
    ) -> tuple[Observation, list[dict[str, Any]]]:
        """`reset` with one dict of infos per environment."""
        seeds = seed_per_env(seed, self.num_envs)
        self._failed[:] = False
        outcomes = self._run([self._reset_command(i, seeds[i]) for i in range(self.num_envs)])
        self._done[:] = False
        return self._observations(outcomes), [outcome.info for outcome in outcomes]

    def step(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observation, rewards, terminated, truncated, infos = self.step_all(actions)
        return observation, rewards, terminated, truncated, self._info_dict(infos)

    def step_all(
        self, actions: np.ndarray
    ) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """`step` with one dict of infos per environment."""
        commands = [
            self._reset_command(i) if self._done[i] else Command(actions[i])
            for i in range(self.num_envs)
        ]
        outcomes = self._run(commands)
        rewards = np.array([outcome.reward for outcome in outcomes], dtype=np.float32)
        terminated = np.array([outcome.terminated for outcome in outcomes])
        truncated = np.array([outcome.truncated for outcome in outcomes])
        self._done = terminated | truncated
        infos = [outcome.info for outcome in outcomes]
        return self._observations(outcomes), rewards, terminated, truncated, infos

    def replan(self, env_ids: Sequence[int]) -> Observation:
        """The base policy's part of these environments' observations, from a chunk that begins now.

        Returns:
            `base_action`, and `observation.features` of a policy that has them, in their order.
        """
        names = self.group.observation_space.spaces
        batch = {key: np.stack([self._last[i][key] for i in env_ids]) for key in names}
        tasks = [self._tasks[i] for i in env_ids]
        add_base_policy(batch, self.chunks, tasks, self._actions, env_ids, replan=True)
        return {key: batch[key] for key in (BASE_ACTION, POLICY_FEATURES) if key in batch}

    @property
    def resets_next(self) -> bool:
        """Whether the next step resets an environment, which takes as long as it takes."""
        return bool(self._done.any())

    def end_episodes(self, env_ids: Sequence[int]) -> None:
        """The next step resets these environments, as if their episodes had ended by themselves."""
        self._done[list(env_ids)] = True

    def _run(self, commands: list[Command]) -> list[Outcome]:
        """The outcomes; failed steps end their episode, failed resets are made again."""
        outcomes = self.group.run(commands)
        resets = [i for i, command in enumerate(commands) if command.action is None]
        while failed := [i for i in resets if outcomes[i].failure]:
            again = self.group.run([c if i in failed else None for i, c in enumerate(commands)])
            for i in failed:
                outcomes[i] = again[i]
        for i, outcome in enumerate(outcomes):
            failure = outcome.failure or outcome.info.get("env_failure")
            self._failed[i] = failure is not None
            if failure is not None:
                info = {"is_success": False, "task": self._tasks[i], "env_failure": failure}
                outcomes[i] = Outcome(self._last[i], truncated=True, info=info)
            elif i in resets:
                self.chunks.reset([i], [self._noise_of(commands[i])])
                self._tasks[i] = str(outcome.info.get("task", ""))
                asked = commands[i].options or {"init_state_id": -1}
                outcome.info = {**outcome.info, **asked}
            elif (outcome.terminated or outcome.truncated) and "is_success" not in outcome.info:
                raise EnvFailedError(
                    f"environment {i} ended an episode and its info has no 'is_success', a bool: "
                    "step() has to tell with which outcome"
                )
        return outcomes

    def render_env(self, i: int) -> np.ndarray:
        """A picture [H, W, 3] uint8 of environment i, made with `render_mode="rgb_array"`."""
        return self.group.render(i)

    def close_extras(self, **kwargs: Any) -> None:
        self.group.close()

    def _reset_command(self, i: int, seed: int | None = None) -> Command:
        """A reset to the next init state, or to the same one again after a failure.

        The init state is the seed, too: its episode is the same in whichever environment it is
        played, and after whatever.
        """
        if not self._failed[i]:
            self._options[i] = None
            if self._init_states:
                self._options[i] = {"init_state_id": self._init_states.popleft()}
        options = self._options[i]
        return Command(seed=options["init_state_id"] if options else seed, options=options)

    @staticmethod
    def _noise_of(reset: Command) -> tuple[int, int] | None:
        """Seed and number of the episode for the base policy's noise; see `ChunkCache.reset`."""
        if reset.options:
            return 0, reset.options["init_state_id"]
        return None if reset.seed is None else (reset.seed, 0)

    def _observations(self, outcomes: Sequence[Outcome]) -> Observation:
        """Observations of all environments with the base policy's actions."""
        names = self.group.observation_space.spaces
        batch = {key: np.stack([o.observation[key] for o in outcomes]) for key in names}
        self._last = [{key: batch[key][i] for key in names} for i in range(self.num_envs)]
        add_base_policy(batch, self.chunks, self._tasks, self._actions)
        return batch

    def _info_dict(self, per_env: Sequence[dict[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for i, info in enumerate(per_env):
            infos = self._add_info(infos, info, i)
        return infos


class InfosPerEnv(VectorWrapper):
    """Infos as a list: what gymnasium's `DictInfoToList` gives, without the way through arrays.

    With a clock each step takes at least its period. The wait is after the environment's step, so
    that who acts next, a person or the policy, is asked when its action is due; a robot waits
    itself, before it looks.
    """

    env: BaseActionVectorEnv

    def __init__(self, env: BaseActionVectorEnv, clock: ControlClock | None = None) -> None:
        super().__init__(env)
        self.clock = clock
        """Of a control rate; None steps as fast as it can."""

    def reset(self, *, seed: Any = None, options: dict | None = None) -> Any:
        results = self.env.reset_all(seed)
        if self.clock is not None:
            self.clock.restart()
        return results

    def step(self, actions: Any) -> Any:
        if self.clock is None:
            return self.env.step_all(actions)
        resets = self.env.resets_next
        robots = self.env.robots
        for robot in robots:  # one that has failed has been made anew
            robot.clock = self.clock
        results = self.env.step_all(actions)
        if resets:
            self.clock.restart()
        elif not robots:
            self.clock.tick()
        return results


def add_base_policy(
    batch: Observation,
    chunks: ChunkCache,
    tasks: Sequence[str],
    actions: gym.spaces.Box,
    env_ids: Sequence[int] | None = None,
    replan: bool = False,
) -> None:
    """Put what the base policy adds into the observations of its environments, all or some.

    Args:
        replan: these observations have been shown already; see `ChunkCache.replan`.
    """
    if replan and env_ids is not None:
        base_action = chunks.replan(batch, tasks, env_ids)
    else:
        base_action = chunks.act(batch, tasks, env_ids)
    batch[BASE_ACTION] = np.clip(base_action, actions.low, actions.high)
    if chunks.features.shape[1]:
        batch[POLICY_FEATURES] = chunks.features[slice(None) if env_ids is None else env_ids].copy()


def with_base_policy(
    policy: BasePolicy, observations: gym.spaces.Dict, actions: gym.spaces.Box
) -> gym.spaces.Dict:
    """The environment's observation space and what the base policy adds to it."""
    spaces = {**observations.spaces, BASE_ACTION: actions}
    if feature_dim := getattr(policy, "feature_dim", 0):
        spaces[POLICY_FEATURES] = gym.spaces.Box(-np.inf, np.inf, (feature_dim,), np.float32)
    return gym.spaces.Dict(spaces)


def seed_per_env(seed: int | Sequence[int | None] | None, num_envs: int) -> list[int | None]:
    """One seed per environment: a single seed becomes independent children of it."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        children = np.random.SeedSequence(int(seed)).generate_state(num_envs)
        return [int(s) for s in children]
    if len(seed) != num_envs:
        raise ValueError(f"got {len(seed)} seeds for {num_envs} environments")
    return list(seed)


def check_policy_matches(
    policy: BasePolicy, observation_space: gym.Space, action_space: gym.Space
) -> tuple[gym.spaces.Dict, gym.spaces.Box]:
    """The environment's spaces; a policy that cannot act in them is refused, naming what differs,
    and columns that nobody reads are told of.

    Raises:
        ValueError: spaces of another kind than Dict and Box, another action dimension, or an
            observation that the environment lacks or has in another shape.
    """
    observation_space, action_space = checked_spaces(observation_space, action_space)
    if (policy.action_dim,) != action_space.shape:
        raise ValueError(
            f"the base policy acts in {policy.action_dim} dimensions but the environment takes "
            f"{action_space.shape[0]}: choose a policy trained for this environment "
            "(--policy.path) or another environment (--env.suite, --env.task)"
        )
    missing = sorted(set(policy.input_features) - set(observation_space.spaces))
    if missing:
        raise ValueError(missing_observations(policy.input_features, observation_space.spaces))
    for key, shape in policy.input_features.items():
        # images are declared channel-first by LeRobot and given channel-last by environments
        given = tuple(observation_space.spaces[key].shape or ())
        if len(given) == 3:
            given = (given[2], *given[:2])
        if tuple(shape) != given:
            raise ValueError(f"the base policy needs {key!r} of shape {tuple(shape)}, not {given}")
    tell_unread(observation_space.spaces, policy.input_features)
    return observation_space, action_space
