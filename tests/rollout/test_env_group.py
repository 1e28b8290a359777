"""Environments that raise, die or hang are replaced, alone."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from fragile import FragileEnv
from toy import CountingEnv, CountingPolicy

import envs
from pld_ray.evaluation.play import play_init_states
from pld_ray.rollout.env_group import Command, EnvFailedError, InProcessEnvs
from pld_ray.rollout.subprocess_envs import SubprocessEnvs
from pld_ray.rollout.vector_env import BaseActionVectorEnv

STEP = np.zeros(3, dtype=np.float32)
CRASH, HANG, RAISE = (np.full(3, value, dtype=np.float32) for value in (0.25, 0.5, 0.75))


@pytest.fixture
def subprocesses():
    groups = []

    def make(n=2, make_env=FragileEnv, **options):
        groups.append(SubprocessEnvs([make_env] * n, preload=[], **options))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def vector(group):
    env = BaseActionVectorEnv(group, CountingPolicy())
    env.reset(seed=0)
    return env


def test_processes_answer_what_the_environment_would_in_this_process(subprocesses):
    ours, theirs = InProcessEnvs([CountingEnv, CountingEnv]), subprocesses(make_env=CountingEnv)
    commands = [[Command(seed=1), Command(seed=2)]] + [[Command(STEP), Command(STEP)]] * 6
    for command in commands:
        for one, other in zip(ours.run(command), theirs.run(command), strict=True):
            state = other.observation["observation.state"]
            assert np.array_equal(one.observation["observation.state"], state)
            assert (one.truncated, one.info) == (other.truncated, other.info)


@pytest.mark.parametrize(
    ("action", "reason"),
    [(CRASH, "exit code 7"), (HANG, "step_timeout_s"), (RAISE, "the arm fell off")],
)
def test_a_failing_environment_ends_its_episode_and_the_others_go_on(subprocesses, action, reason):
    group = subprocesses(step_timeout_s=3.0 if action is HANG else 60.0)
    pids = group.pids
    env = vector(group)
    env.step(np.stack([STEP, STEP]))
    observation, reward, terminated, truncated, infos = env.step(np.stack([action, STEP]))
    assert truncated.tolist() == [True, False]
    assert not terminated.any()
    assert reward.tolist() == [0, 0]
    assert observation["observation.state"].tolist() == [[0, 1], [0, 2]]  # the last one again
    assert reason in infos["env_failure"][0]
    assert not infos["is_success"][0]
    assert group.pids[1] == pids[1]
    assert group.pids[0] != pids[0]
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    observation, _, _, truncated, _ = env.step(np.stack([STEP, STEP]))
    assert observation["observation.state"].tolist() == [[0, 0], [0, 3]]  # a new one, reset
    assert not truncated.any()


def test_an_exception_in_this_process_replaces_that_environment_alone():
    group = InProcessEnvs([FragileEnv, FragileEnv])
    env = vector(group)
    other = group.envs[1]
    _, _, _, truncated, infos = env.step(np.stack([RAISE, STEP]))
    assert truncated.tolist() == [True, False]
    assert "the arm fell off" in infos["env_failure"][0]
    assert group.envs[1] is other


def test_an_environment_that_always_fails_is_an_error_that_says_how(subprocesses):
    env = vector(subprocesses(n=1))
    for _ in range(4):  # crash, reset, crash, reset
        env.step(CRASH[None])
    with pytest.raises(EnvFailedError, match=r"3 times in a row.*exit code 7"):
        env.step(CRASH[None])


def test_a_failed_episode_is_evaluated_again_from_the_same_init_state(subprocesses, tmp_path):
    """The simulator dies once, in the middle of an episode from init state 4."""
    group = subprocesses(make_env=functools.partial(FragileEnv, die_once=str(tmp_path / "died")))

    class Infos:  # what RLlib's wrapper does
        def __init__(self, env):
            self.unwrapped, self.num_envs = env, env.num_envs

        def reset(self, **kwargs):
            observation, infos = self.unwrapped.reset(**kwargs)
            return observation, self.listed(infos)

        def step(self, action):
            *results, infos = self.unwrapped.step(action)
            return (*results, self.listed(infos))

        def listed(self, infos):
            return [
                {k: v[i] for k, v in infos.items() if not k.startswith("_") and infos[f"_{k}"][i]}
                for i in range(self.num_envs)
            ]

    results = play_init_states(Infos(vector(group)), [3, 4, 5])
    assert (tmp_path / "died").exists()
    assert {i: r.length for i, r in results.items()} == {3: 5, 4: 5, 5: 5}


def test_replacements_start_from_seeds_of_their_own():
    seeds = []

    class Remembers(FragileEnv):
        def reset(self, *, seed=None, options=None):
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    group = InProcessEnvs([Remembers])
    group.run([Command(seed=5)])
    for _ in range(2):
        group.run([Command(STEP)])
        group.run([Command(RAISE)])
        group.run([Command()])
    assert seeds[0] == 5
    assert None not in seeds
    assert len(set(seeds)) == 3


def test_a_killed_parent_leaves_no_simulator_behind(tmp_path):
    code = (
        "from pld_ray.rollout.subprocess_envs import SubprocessEnvs\n"
        "from pld_ray.rollout.env_group import Command\n"
        "from fragile import FragileEnv\n"
        "group = SubprocessEnvs([FragileEnv], preload=[])\n"
        "group.run([Command()])\n"
        "print(group.pids[0], flush=True)\n"
        "input()\n"
    )
    path = os.pathsep.join([os.path.dirname(__file__), os.getcwd()])
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    pid = int(parent.stdout.readline())
    descriptor = os.pidfd_open(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert multiprocessing.connection.wait([descriptor], 60), "the simulator outlived its parent"
    os.close(descriptor)


def test_the_real_simulator_in_processes_equals_the_one_in_this_process():
    make = functools.partial(envs.LiberoEnv, task="lift_the_can")
    ours, theirs = InProcessEnvs([make]), SubprocessEnvs([make, make])
    try:
        rng = np.random.default_rng(0)
        reset = Command(seed=3, options={"init_state_id": 1})
        commands = [reset, *(Command(rng.uniform(-1, 1, 7).astype(np.float32)) for _ in range(5))]
        for command in commands:
            (one,) = ours.run([command])
            other, again = theirs.run([command, command])
            for key, value in one.observation.items():
                assert np.array_equal(value, other.observation[key])
                assert np.array_equal(value, again.observation[key])
    finally:
        ours.close()
        theirs.close()


def test_nothing_is_left_running_after_close(subprocesses):
    group = subprocesses()
    descriptors = [os.pidfd_open(pid) for pid in group.pids]
    closing = threading.Thread(target=group.close)
    closing.start()
    for descriptor in descriptors:
        assert multiprocessing.connection.wait([descriptor], 60)
        os.close(descriptor)
    closing.join()
    group.close()  # again is harmless
