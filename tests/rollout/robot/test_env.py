"""The environment around a LeRobot robot, a plugin whose arm MuJoCo moves with gravity."""

from __future__ import annotations

import itertools
import os
import pty
import queue
import threading
import time

import installed
import lerobot_robot_tabletop as plugin
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from pld_ray.columns import BASE_ACTION
from pld_ray.config import ConfigError, InterventionConfig, TrainConfig
from pld_ray.policies import NoBasePolicy
from pld_ray.rollout.control_clock import ControlClock
from pld_ray.rollout.device import DeviceLostError, DevicePerson, Reading
from pld_ray.rollout.env_group import InProcessEnvs
from pld_ray.rollout.keyboard import TERMINAL, TerminalKeyboard
from pld_ray.rollout.robot import arm as arm_module
from pld_ray.rollout.robot import env as env_module
from pld_ray.rollout.robot.env import RobotEnv
from pld_ray.rollout.robot.errors import ArmError
from pld_ray.rollout.robot.person import ArmDevice
from pld_ray.rollout.vector_env import BaseActionVectorEnv, InfosPerEnv

HZ = 1000.0
STILL = np.zeros(7, np.float32)


@pytest.fixture
def here(tmp_path, monkeypatch):
    installed.install(monkeypatch, tmp_path)
    monkeypatch.setattr(arm_module, "RETRY_S", 0.0)
    monkeypatch.setattr(env_module, "SETTLE_S", 0.05)
    return tmp_path


@pytest.fixture
def make(here):
    """A function that makes environments; closed at the end."""
    made = []

    def make(robot=None, episode_length=1000, **arm):
        given = installed.settings(here, robot, **arm)
        env = RobotEnv(**given, control_hz=HZ, episode_length=episode_length, task="reach")
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def body(env) -> plugin.Tabletop:
    return env.arm._robot


def act(**dims):
    """An action by its dimensions' names."""
    names = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
    return np.array([dims.get(name, 0.0) for name in names], np.float32)


def play(env, action, steps):
    for _ in range(steps):
        result = env.step(action)
    return result


# --- motion ---------------------------------------------------------------------------------------


def test_the_hand_moves_that_way(make):
    env = make()
    env.reset(seed=0)
    for axis, sign in itertools.product(range(3), (1.0, -1.0)):
        before = body(env).hand
        play(env, act(**{"xyz"[axis]: sign}), 4)
        play(env, STILL, 5)
        wanted = sign * 0.04 * np.eye(3)[axis]
        assert np.abs(body(env).hand - before - wanted).max() < 0.001  # m


def test_the_hand_turns_that_way_and_stays_where_it_is(make):
    env = make()
    env.reset(seed=0)
    before, site = body(env).hand, body(env).data.site("grasp")
    turned = site.xmat.reshape(3, 3).copy()
    play(env, act(yaw=1.0), 4)
    play(env, STILL, 5)
    turn = Rotation.from_matrix(site.xmat.reshape(3, 3) @ turned.T).as_rotvec()
    np.testing.assert_allclose(turn, [0, 0, 0.2], atol=0.01)
    assert np.abs(body(env).hand - before).max() < 0.002


def test_the_gripper_closes_with_one_as_liberos_and_keeps_what_it_has(make):
    env = make(gripper_step=0.25)
    observation, _ = env.reset(seed=0)
    assert observation["observation.state"][-1] == pytest.approx(1.0, abs=0.02)
    observation = play(env, act(gripper=1.0), 2)[0]
    assert body(env).sent[-1]["gripper.pos"] == pytest.approx(50.0)
    play(env, STILL, 3)
    assert body(env).sent[-1]["gripper.pos"] == pytest.approx(50.0)
    play(env, act(gripper=-1.0), 4)
    assert body(env).sent[-1]["gripper.pos"] == pytest.approx(100.0)


def test_a_robot_in_radians_is_sent_radians(make):
    rest = {n: np.radians(v) if n != "gripper" else v for n, v in plugin.REST.items()}
    env = make(joint_unit="radians", rest_pose=rest)
    np.testing.assert_allclose(env.arm.rest.q, np.radians([plugin.REST[n] for n in plugin.JOINTS]))
    sent = env.arm._in_its_units(env.arm.rest.q, 1.0)
    assert sent == pytest.approx({f"{name}.pos": value for name, value in rest.items()})


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """One arm for many random actions."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("driven")
        installed.install(patch, folder)
        given = installed.settings(folder, {"camera": False}, step_m=0.05, step_rad=0.3)
        env = RobotEnv(**given, control_hz=HZ, episode_length=10**6)
        env.reset(seed=0)
        yield env
        env.close()


number = st.floats(-1.5, 1.5, allow_nan=False)


@hypothesis(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(*[number] * 7), min_size=1, max_size=12), st.integers(1, 6))
def test_whatever_is_asked_bounds_limits_and_steps_hold(driven, actions, repeats):
    arm, robot = driven.arm, body(driven)
    low, high = np.array(arm.options.bounds_low), np.array(arm.options.bounds_high)
    for action in np.repeat(np.array(actions), repeats, axis=0):
        measured = driven._measured.q
        driven.step(action)
        told = robot.sent[-1]
        sent = np.radians([told[f"{name}.pos"] for name in plugin.JOINTS])
        commanded, _ = arm.kinematics.pose(sent)
        assert (commanded > low - 0.001).all()
        assert (commanded < high + 0.001).all()
        assert (robot.hand > low - 0.02).all()  # what swings past its command
        assert (robot.hand < high + 0.02).all()
        assert (sent >= arm.kinematics.low - 1e-9).all()
        assert (sent <= arm.kinematics.high + 1e-9).all()
        assert np.abs(sent - measured).max() <= arm.options.max_joint_step + 1e-9
        assert 0 <= told["gripper.pos"] <= 100


def test_a_command_waits_for_an_arm_that_is_held(make):
    env = make()
    env.reset(seed=0)
    robot = body(env)
    robot.config.step_s = 0.0  # it does not move any more
    play(env, act(z=1.0), 100)
    sent = np.radians([robot.sent[-1][f"{name}.pos"] for name in plugin.JOINTS])
    assert np.abs(sent - robot.data.qpos[:6]).max() <= env.arm.options.max_joint_step + 1e-9


# --- episodes -------------------------------------------------------------------------------------


def test_an_episode_is_truncated_and_the_next_begins_at_rest(make):
    env = make(episode_length=3)
    observation, info = env.reset(seed=0, options={"init_state_id": 5})
    assert env.observation_space.contains(observation)
    assert info["task"] == "reach"
    assert info["init_state_id"] == 5
    for left in (2, 1, 0):
        observation, reward, terminated, truncated, info = env.step(act(x=1.0))
        assert env.observation_space.contains(observation)
        assert (reward, terminated, truncated) == (0.0, False, left == 0)
    assert not info["is_success"]
    state = env.reset()[0]["observation.state"]
    np.testing.assert_allclose(state[:6], env.arm.rest.q, atol=0.03)
    np.testing.assert_allclose(state[6:9], body(env).hand, atol=1e-6)


def test_the_way_to_rest_is_slow(make):
    env = make({"away": True}, reset_speed=1.5)
    env.reset(seed=0)
    sent = np.radians([[told[f"{n}.pos"] for n in plugin.JOINTS] for told in body(env).sent])
    assert np.abs(np.diff(sent, axis=0)).max() <= 1.5 / HZ + 1e-9


def test_an_arm_that_cannot_get_to_rest_stops(make, monkeypatch):
    env = make({"away": True})
    env.arm.connect()
    body(env).config.step_s = 0.0
    env._motion.start(env.arm.read().q)
    assert not env._go_to_rest()
    assert "cannot get to its rest pose" in env.arm.stopped


def test_two_environments_of_a_process_share_the_arm(make):
    """Training and evaluation: whose episode the other one interrupts cannot go on with it."""
    train, evaluate = make(), make()
    assert train.arm is evaluate.arm
    train.reset(seed=0)
    evaluate.reset(seed=0)
    sent = len(body(train).sent)
    *_, truncated, info = train.step(act(x=1.0))
    assert truncated
    assert "moved elsewhere" in info["env_failure"]
    assert len(body(train).sent) == sent
    train.close()
    assert body(evaluate).is_connected
    evaluate.close()
    assert not body(evaluate).is_connected


def test_a_vector_of_one_keeps_the_rate_and_repeats_a_failed_evaluation(make):
    env = make({"unplug_after": None}, episode_length=4)
    clock = ControlClock(HZ, *[lambda *_: 0.0] * 2)
    vector = InfosPerEnv(BaseActionVectorEnv([env], NoBasePolicy(7)), clock)
    vector.env.set_init_states([7, 8])
    observation, infos = vector.reset(seed=0)
    assert infos[0]["init_state_id"] == 7
    vector.step(observation[BASE_ACTION])
    assert clock.take() == (1, 0)  # once
    env.arm.stop("somebody came in")
    *_, truncated, infos = vector.step(observation[BASE_ACTION])
    assert truncated[0]
    assert infos[0]["env_failure"] == "somebody came in"
    infos = vector.step(observation[BASE_ACTION])[-1]
    assert infos[0]["init_state_id"] == 7


# --- stops ----------------------------------------------------------------------------------------


class Hand:
    """A device whose readings are planned; Enter for ever after them."""

    dims = range(7)

    def __init__(self, *readings):
        self.readings, self.closed = list(readings), False

    def read(self):
        reading = self.readings.pop(0) if self.readings else Reading(verdict="success")
        if isinstance(reading, Exception):
            raise reading
        return reading

    def episode_begins(self):
        pass

    def close(self):
        self.closed = True


def test_a_stop_holds_the_arm_until_the_person_agrees(make, caplog):
    env = make()
    env.reset(seed=0)
    env.arm.person.device = Hand()
    robot = body(env)
    env.arm.person.device.readings = [Reading()] * 3 + [Reading(stop=True)]
    play(env, act(x=1.0), 3)
    before = np.degrees(robot.data.qpos[:6])
    sent = len(robot.sent)
    *_, terminated, truncated, info = env.step(act(x=1.0))
    assert (terminated, truncated) == (False, True)
    assert info["env_failure"] == "the person said so"
    assert "the arm has stopped: the person said so" in caplog.text
    assert len(robot.sent) == sent + 1  # to hold where it is
    held = [robot.sent[-1][f"{name}.pos"] for name in plugin.JOINTS]
    np.testing.assert_allclose(held, before, atol=1e-6)
    play(env, act(x=1.0), 5)
    assert len(robot.sent) == sent + 1
    hand = robot.hand
    robot.run(1.0)
    assert np.abs(robot.hand - hand).max() < 0.01
    env.arm.person.device.readings = [Reading()] * 3  # then Enter
    env.reset()
    assert env.arm.stopped is None
    assert not env.arm.person.device.readings
    np.testing.assert_allclose(robot.data.qpos[:6], env.arm.rest.q, atol=0.03)


def test_a_stop_on_the_way_to_rest_holds_it_there(make):
    env = make({"away": True})
    env.arm.person.device = Hand(*[Reading()] * 10, Reading(stop=True))
    robot, told = body(env), []
    recover = env.arm.recover
    env.arm.recover = lambda: (told.append((env.arm.stopped, len(robot.sent))), recover())
    env.reset(seed=0)
    assert [why for why, _ in told] == [None, "the person said so"]
    assert told[1][1] == 11  # ten steps of the way, and the hold


@pytest.mark.parametrize("attended", [False, True])
def test_unplugged_in_an_episode(make, attended):
    env = make({"unplug_after": 150}, episode_length=10**6, wait_for_person=False)
    env.reset(seed=0)
    robot, info = body(env), {}
    while "env_failure" not in info:
        observation, reward, terminated, truncated, info = env.step(STILL)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert env.observation_space.contains(observation)
    assert "cannot be read (There is no status packet!)" in info["env_failure"]
    assert len(robot.sent) == 150
    if attended:  # nothing lets go of the motors before somebody has said so
        asked = []
        env.arm.person.device = Hand()
        env.arm.person.device.read = lambda: (
            asked.append((robot.connections, robot.gone)) or Reading(verdict="success")
        )
    env.reset()  # plugs it in again; without a person it goes on by itself
    if attended:
        assert [*dict.fromkeys(asked)] == [(1, True), (2, False)]
    assert robot.connections == 2
    assert env.arm.stopped is None
    env.step(act(x=1.0))
    assert len(robot.sent) > 151


@pytest.mark.parametrize("what", ["answers", "obeys"])
def test_a_robot_that_does_not_come_back_stops_the_arm(make, monkeypatch, what):
    env = make({"camera": False}, call_timeout_s=0.5)
    env.reset(seed=0)
    robot, said = body(env), queue.SimpleQueue()
    monkeypatch.setattr(arm_module, "tell_the_person", said.put)
    event = getattr(robot, what)
    event.clear()
    for _ in range(2):  # the second time at once
        *_, truncated, info = env.step(act(x=1.0))
        assert truncated
        assert info["env_failure"] == "the robot has not answered for 0.5 s"
    sent = len(robot.sent)
    resetting = threading.Thread(target=env.reset, daemon=True)
    resetting.start()
    assert "look at its cables" in said.get(timeout=60)
    assert resetting.is_alive()
    assert len(robot.sent) == sent
    event.set()
    resetting.join(60)
    assert not resetting.is_alive()
    assert env.arm.stopped is None
    assert "env_failure" not in env.step(act(x=1.0))[-1]
    assert len(robot.threads) == 1
    assert robot.threads.isdisjoint({threading.get_ident(), resetting.ident})


def test_what_hangs_keeps_nobody_from_leaving(make, caplog):
    env = make({"camera": False}, call_timeout_s=0.2)
    env.reset(seed=0)
    body(env).answers.clear()
    env.step(STILL)
    began = time.monotonic()
    env.close()
    assert time.monotonic() - began < arm_module.CONNECT_S / 2
    assert "could not be told to let go" in caplog.text
    assert body(env).is_connected
    body(env).answers.set()


def test_an_action_that_is_no_number_stops_it(make):
    env = make()
    env.reset(seed=0)
    sent = len(body(env).sent)
    info = env.step(np.full(7, np.nan))[-1]
    assert "an action was [nan" in info["env_failure"]
    assert len(body(env).sent) == sent + 1


# --- the person -----------------------------------------------------------------------------------


def test_the_person_judges_what_nobody_else_asks_them(make):
    env = make()
    env.reset(seed=0)
    env.arm.person.device = Hand(Reading(), Reading(verdict="success"))
    assert env.step(STILL)[1:3] == (0.0, False)
    _, reward, terminated, truncated, info = env.step(STILL)
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)
    env.arm.person.device.readings = [Reading(verdict="failure")]
    _, reward, terminated, _, info = env.step(STILL)
    assert (reward, terminated, info["is_success"]) == (0.0, True, False)
    env.arm.person.device.readings = [Reading(verdict="discard")]
    assert "threw" in env.step(STILL)[-1]["env_failure"]


def test_whoever_takes_over_reads_the_same_device(make):
    env = make()
    env.reset(seed=0)
    hand = env.arm.person.device = Hand(Reading({0: 0.5}), Reading(stop=True))
    person = DevicePerson(ArmDevice(lambda: env), env.action_space.low, env.action_space.high)
    observation, stepping = {BASE_ACTION: STILL[None]}, np.array([True])
    turn = person.intervene(observation, stepping, 0)
    np.testing.assert_array_equal(turn.actions[0], act(x=0.5))
    assert not env.asks_person
    env.step(turn.actions[0])
    assert len(hand.readings) == 1
    assert not person.intervene(observation, stepping, 0).actions
    assert "env_failure" in env.step(STILL)[-1]
    person.close()
    assert env.asks_person
    assert not hand.closed
    env.close()
    assert hand.closed


def test_an_environment_that_is_made_anew_has_the_arm_and_its_person(make):
    """Whatever raises in a step: a wrapper, a camera of another size."""
    vector = BaseActionVectorEnv(InProcessEnvs([make]), NoBasePolicy(7))
    vector.reset(seed=0)
    (broken,) = vector.robots
    hand = broken.arm.person.device = Hand(Reading())
    actions = vector.single_action_space
    person = DevicePerson(ArmDevice(lambda: vector.robots[0]), actions.low, actions.high)
    broken._observation = lambda: 1 / 0
    *_, truncated, infos = vector.step_all(STILL[None])
    assert truncated[0]
    assert "ZeroDivisionError" in infos[0]["env_failure"]
    (env,) = vector.robots
    assert env is not broken
    assert body(env).connections == 1  # its motors were not let go of
    assert not hand.closed
    observation = vector.step_all(STILL[None])[0]  # the reset
    hand.readings = [Reading({0: 0.5})]
    turn = person.intervene(observation, np.array([True]), 0)
    np.testing.assert_array_equal(turn.actions[0], act(x=0.5))
    hand.readings = [Reading(stop=True), Reading({0: 0.5})]
    person.intervene(observation, np.array([True]), 0)
    assert vector.step_all(STILL[None])[-1][0]["env_failure"] == "the person said so"
    assert len(hand.readings) == 1  # asked once a step
    vector.close()
    assert hand.closed
    assert not body(env).is_connected


def test_a_device_that_goes_stops_the_arm(make):
    env = make()
    env.reset(seed=0)
    env.arm.person.device = Hand(DeviceLostError("the terminal is gone"))
    assert env.step(STILL)[-1]["env_failure"] == "the terminal is gone"
    assert env.arm.person.device is None


def test_resets_wait_for_enter_in_the_terminal(make, monkeypatch):
    master, slave = pty.openpty()
    monkeypatch.setenv(TERMINAL, os.ttyname(slave))
    env = make(wait_for_person=True)
    env.check(attended=False)
    waiting = threading.Thread(target=env.reset, daemon=True)
    waiting.start()
    assert b"arrange the scene, then press Enter" in os.read(master, 1024)
    assert waiting.is_alive()
    os.write(master, b"\n")
    waiting.join(60)
    assert not waiting.is_alive()
    for fd in (master, slave):
        os.close(fd)


def test_the_space_bar_stops(monkeypatch):
    master, slave = pty.openpty()
    keyboard = TerminalKeyboard(InterventionConfig(device="keyboard"), os.ttyname(slave))
    os.write(master, b"w ")
    reading = keyboard.read()
    while not reading.stop:
        reading = keyboard.read()
    assert reading == Reading(stop=True)
    assert not keyboard.read().stop
    keyboard.close()
    for fd in (master, slave):
        os.close(fd)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("robot", "arm", "why"),
    [
        ({"type": "robby"}, {}, r"env.robot.type=robby: must be one of .*so101_follower.*tabletop"),
        ({"type": "so101_follower", "port": None}, {}, "env.robot of type so101_follower: "),
        ({"prot": "/dev/null"}, {}, "The fields `prot` are not valid"),
        ({}, {"gripper": "claw"}, "env.arm.gripper=claw: the robot has pan, "),
        ({}, {"joint_names": {}}, "has no joint 'wrist_roll'"),
        ({}, {"rest_pose": {"pan": 0.0}}, "rest_pose must say where each of pan, .*look at elbow"),
        ({}, {"rest_pose": plugin.REST | {"lift": 150.0}}, "rest_pose.lift=150.0 is beyond"),
        ({}, {"bounds_low": [0.4, -0.2, 0.05]}, "rest_pose has the hand at .* out of"),
        ({}, {"end_effector": "claw"}, "env.arm.end_effector=claw"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(make, robot, arm, why):
    before = {*arm_module._open}
    with pytest.raises(ValueError, match=why) as refused:
        make(robot, **arm)
    assert "\n" not in str(refused.value)
    assert {*arm_module._open} == before


@pytest.mark.parametrize(
    ("robot", "why"),
    [
        ({"port": "/nowhere"}, "Could not connect on port '/nowhere'. Is it there"),
        ({"calibrated": False}, "is not calibrated: run lerobot-calibrate"),
    ],
)
def test_a_robot_that_is_not_ready_is_refused(make, robot, why):
    env = make(robot)
    with pytest.raises(ArmError, match=why) as refused:
        env.check(attended=False)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"env.arm.step_m": 0.02}, "env.arm is of env.robot, which is not set"),
        ({"env.robot": {"port": "x"}}, "env.robot has no type"),
        ({"env.robot": {"type": "x"}, "env.entry_point": "a:B"}, "exclude each other"),
        ({"env.robot": {"type": "x"}}, "env.robot needs env.arm.model"),
        ({"env.arm.bounds_low": [1.0, 0.0, 0.0]}, r"env.arm.bounds_low=\[1.0.*: must be below"),
        ({"env.control_hz": None}, "env.robot needs a control rate"),
        ({"runners.num_env_runners": 2}, "env.robot is one arm in one process"),
        ({"evaluation.num_env_runners": 1}, "env.robot is one arm in one process"),
        (
            {"runners.num_env_runners": 1, "env.arm.wait_for_person": True},
            "asks in a terminal, from which a runner's own process cannot read: set runners.num",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(here, changes, why):
    config = TrainConfig()
    config.env.control_hz, config.runners.num_env_runners = 10.0, 0
    if not {"env.robot", "env.arm.step_m"} & {*changes}:
        given = installed.settings(here)
        config.env.robot = given["robot"]
        for name, value in given["arm"].items():
            setattr(config.env.arm, name, value)
        config.validate()
    for key, value in changes.items():
        *groups, name = key.split(".")
        owner = config
        for group in groups:
            owner = getattr(owner, group)
        setattr(owner, name, value)
    with pytest.raises(ConfigError, match=why):
        config.validate()


def test_an_actor_s_runner_may_ask_in_its_terminal(here):
    config = TrainConfig()
    config.env.control_hz, config.runners.num_env_runners = 10.0, 1
    given = installed.settings(here, wait_for_person=True)
    config.env.robot = given["robot"]
    for name, value in given["arm"].items():
        setattr(config.env.arm, name, value)
    with pytest.raises(ConfigError, match=r"placement\.env_runner"):
        config.validate()
    config.placement.env_runner = {"robot": 1}
    config.validate()
