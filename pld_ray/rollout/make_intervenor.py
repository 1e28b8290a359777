"""The person of a runner, by the settings."""

from __future__ import annotations

from typing import Any

import numpy as np

from pld_ray.config.intervention import ATTENDED, InterventionConfig
from pld_ray.rollout.device import Device, DeviceError, DevicePerson, check_dims
from pld_ray.rollout.intervention import Intervenor
from pld_ray.rollout.keyboard import HELP, TerminalKeyboard, tell_the_person
from pld_ray.rollout.robot.person import ArmDevice
from pld_ray.rollout.scripted_person import ScriptedPerson, check_helped, make_helper
from pld_ray.rollout.spacemouse import open_spacemouse
from pld_ray.rollout.teleoperator import TeleoperatorDevice, make_teleoperator
from pld_ray.rollout.vector_env import BaseActionVectorEnv


def check_intervention(options: InterventionConfig, env: Any) -> None:
    """See, before anything starts, that the person could act in this environment.

    Raises:
        ValueError: nobody is there, or the device does not fit.
    """
    if options.device == "scripted":
        check_helped(env)
    elif options.device != "none":
        device = open_device(options)
        try:
            check_dims(options.device, device.dims, options.fixed_dims, env.action_space.shape[0])
        finally:
            device.close()


def open_device(options: InterventionConfig) -> Device:
    """What the person holds, ready to be read.

    Raises:
        DeviceError: it is not there.
    """
    if options.device == "keyboard":
        return TerminalKeyboard(options)
    if options.device == "spacemouse":
        return open_spacemouse(options)
    return TeleoperatorDevice(make_teleoperator(options.device), options)


def attend(options: InterventionConfig, env: BaseActionVectorEnv) -> None:
    """A robot's person takes their device, for its resets and stops too.

    Raises:
        DeviceError: it is not there.
    """
    for robot in env.robots:
        if options.device in ATTENDED and robot.arm.person.device is None:
            robot.arm.person.device = open_device(options)


def make_intervenor(
    options: InterventionConfig, env: BaseActionVectorEnv, rng: np.random.Generator
) -> Intervenor | None:
    """Whoever may intervene; None where nobody does.

    Args:
        options: who, and how.
        env: the runner's environments.
        rng: the runner's; nothing is drawn from it where nobody intervenes.

    Raises:
        ValueError: the device cannot be used with these environments.
    """
    if options.device == "none":
        return None
    if options.device == "scripted":
        own = np.random.default_rng(int(rng.integers(2**63)))
        return ScriptedPerson(make_helper(env.envs), env.num_envs, options, own)
    actions = env.group.action_space
    attend(options, env)
    device = ArmDevice(lambda: env.robots[0]) if env.robots else open_device(options)
    try:
        check_dims(options.device, device.dims, options.fixed_dims, (actions.shape or (0,))[0])
    except DeviceError:
        device.close()
        raise
    if options.device == "keyboard":
        tell_the_person(HELP)
    return DevicePerson(device, actions.low, actions.high)
