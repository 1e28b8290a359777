"""Who may take over from the policy while it learns, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pld_ray.options import option

if TYPE_CHECKING:
    from pld_ray.config.groups import RunnersConfig

DeviceName = Literal["none", "scripted", "keyboard", "keyboard_ee", "gamepad", "spacemouse"]
ATTENDED = ("keyboard", "keyboard_ee", "gamepad", "spacemouse")
"""Devices that a person holds: they are one environment's, in the process of the command or at the
only runner, on a machine of its own (`pld-ray actor`)."""


@dataclass
class InterventionConfig:
    """A person who takes over from the policy while it learns (HIL-SERL; seed 003)."""

    device: DeviceName = option(
        "none",
        "Who intervenes: `none`, `scripted` (a demonstrator that knows the simulator), `keyboard` "
        "(of this terminal, over SSH too), a `spacemouse`, or LeRobot's teleoperators "
        "`keyboard_ee` and `gamepad`. "
        "Experimental: only `none` and `scripted` were run to the end.",
    )

    # --- the scripted person ---------------------------------------------------------------------
    takeover: Literal["no_progress", "random"] = option(
        "no_progress",
        "When the scripted person takes over: `no_progress` (nothing came nearer to the goal for "
        "`patience_steps`) or `random` (with `probability` at each step).",
    )
    patience_steps: int = option(
        30,
        "Steps without progress after which the scripted person takes over. Fewer help a bad "
        "policy sooner, and a good one that explores more often than it needs.",
        within="[1, 1e6]",
    )
    probability: float = option(
        0.02,
        "Probability at each step that the scripted person takes over (takeover=random), at the "
        "first environment step.",
        within="[0, 1]",
    )
    decay_steps: int | None = option(
        None,
        "Environment steps over which the scripted person's help fades to 0, linearly: "
        "`probability`, or of takeover=no_progress the share of the stuck moments in which they "
        "do take over; in the others they wait `patience_steps` again. None fades nothing.",
        within="[1, 1e10]",
    )
    hold_steps: int | None = option(
        None,
        "Steps for which the scripted person keeps acting; None is to the episode's end.",
        within="[1, 1e6]",
    )

    # --- what the person sees --------------------------------------------------------------------
    view: Literal["none", "rerun", "foxglove"] = option(
        "none",
        "Live view of the first environment of the first runner, by LeRobot's viewers: cameras "
        "(`env.cameras`), state, actions, who acts, episode and success rate; "
        '`pip install "lerobot[viz]"`. Experimental.',
    )
    view_address: str | None = option(
        None,
        "HOST:PORT of a Rerun viewer that is open (`rerun`, or `rerun --serve-web` for a browser), "
        "or at which Foxglove is served; None opens Rerun on the runner's machine, and serves "
        "Foxglove at 127.0.0.1:8765.",
    )

    # --- a device in a person's hand -------------------------------------------------------------
    hz: float = option(
        20.0,
        "Steps per second at most while a person holds a device, unless `env.control_hz` says it: "
        "a simulator would run away.",
        within="(0, 1000]",
        unit="Hz",
    )
    speed: float = option(
        0.5,
        "Share of the action's range that a pressed key, or an axis at its end, commands.",
        within="(0, 1]",
    )
    key_hold_s: float = option(
        0.25,
        "Seconds for which a key of a terminal counts as pressed: terminals tell no release.",
        within="(0, 10]",
        unit="s",
    )
    fixed_dims: list[int] = option(
        [],
        "Action dimensions that a device of fewer axes leaves at the base policy's command.",
        within="[0, 63]",
        distinct=True,
    )

    def rate(self, control_hz: float | None) -> float | None:
        """Steps per second of the environment; None is as fast as it can.

        Args:
            control_hz: of `EnvConfig`.
        """
        return self.hz if control_hz is None and self.device in ATTENDED else control_hz

    def view_at(self) -> tuple[str | None, int | None]:
        """Host and port of `view_address`; None where it is not given.

        Raises:
            ValueError: it is no HOST:PORT.
        """
        if self.view_address is None:
            return None, None
        host, separator, port = self.view_address.rpartition(":")
        if not (host and separator and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(
                f"intervention.view_address={self.view_address} is no HOST:PORT, such as "
                "127.0.0.1:9876"
            )
        return host, int(port)

    def check(self, runners: RunnersConfig, elsewhere: bool) -> None:
        """Refuse runners in which the device could not be asked.

        Args:
            runners: of the run.
            elsewhere: they are placed by custom resources, on machines of their own.

        Raises:
            ValueError: naming the setting.
        """
        if self.view == "none" and self.view_address is not None:
            raise ValueError("intervention.view_address is of intervention.view, which is none")
        self.view_at()
        if self.device == "scripted" and runners.vectorization != "in_process":
            raise ValueError(
                "intervention.device=scripted sees the simulator, which must then be in the same "
                "process: set runners.vectorization=in_process"
            )
        if self.device not in ATTENDED:
            return
        most = 1 if elsewhere else 0
        if runners.num_env_runners > most or runners.num_envs_per_env_runner != 1:
            raise ValueError(
                f"intervention.device={self.device} is one person at one environment of this "
                "process: set runners.num_env_runners=0 and runners.num_envs_per_env_runner=1, or "
                "with pld-ray actor runners.num_env_runners=1 and placement.env_runner"
            )
