"""One init state played twice, base policy beside base + residual, as an mp4."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pld_ray.evaluation.play import Act, EpisodeResult, play_init_states
from pld_ray.rollout import factory
from pld_ray.rollout.vector_env import InfosPerEnv

FRAME_SIZE = 256
FPS = 20  # LIBERO's control frequency: videos run in real time
HOLD_FRAMES = 20  # the outcome stays for a second
BAND = 24  # pixels above the pictures, for the caption
GREEN, RED, GREY = (40, 140, 60), (180, 50, 40), (60, 60, 60)


@dataclass(frozen=True)
class Film:
    """An mp4, and the two episodes that it shows side by side; `base` is None where it is alone."""

    mp4: bytes
    base: EpisodeResult | None
    residual: EpisodeResult


def film_init_state(
    env_name: str,
    env_config: Mapping[str, Any],
    init_state_id: int,
    act: Act,
    compares: bool = True,
) -> Film:
    """Play an init state with the base policy and with `act`, and film both.

    Args:
        env_name: the registered vector environment.
        env_config: its configuration.
        init_state_id: id of a stored init state.
        act: observations -> actions of base + residual.
        compares: False leaves the base policy out.

    Raises:
        RenderingUnavailableError: no usable OpenGL library; the message says what to install.
    """
    config = {**env_config, "num_envs": 1, "render_mode": "rgb_array"}
    if not config.get("cameras") and "entry_point" not in config:
        config["image_size"] = FRAME_SIZE
    env = InfosPerEnv(factory.make_env(env_name, config))
    base, columns = None, []
    try:
        if compares:
            frames, base = film(env, init_state_id, None)
            columns.append(captioned(frames, "base", base.success))
        frames, residual = film(env, init_state_id, act)
        name = "base + residual" if compares else "learnt policy"
        columns.append(captioned(frames, name, residual.success))
    finally:
        env.close()
    return Film(encode(side_by_side(columns)), base, residual)


def film(env: Any, init_state_id: int, act: Act | None) -> tuple[list[np.ndarray], EpisodeResult]:
    """The pictures after each step of one episode, and its result."""
    frames: list[np.ndarray] = []
    vector = env.unwrapped
    results = play_init_states(
        env, [init_state_id], act, lambda i, state: frames.append(vector.render_env(i))
    )
    return frames, results[init_state_id]


def captioned(frames: Sequence[np.ndarray], name: str, success: bool) -> list[np.ndarray]:
    """A band over each picture with the name and the step; its colour tells the outcome."""
    from PIL import Image, ImageDraw

    done = []
    for step, frame in enumerate([*frames, *[frames[-1]] * HOLD_FRAMES], start=1):
        over = step >= len(frames)
        colour = (GREEN if success else RED) if over else GREY
        outcome = ("success" if success else "failed") if over else ""
        height, width = frame.shape[:2]
        image = Image.new("RGB", (width, height + BAND), colour)
        image.paste(Image.fromarray(frame), (0, BAND))
        text = f"{name}   step {min(step, len(frames))}   {outcome}"
        ImageDraw.Draw(image).text((6, 5), text, fill=(255, 255, 255))
        done.append(np.asarray(image))
    return done


def side_by_side(columns: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """One film of several; the shorter ones stand still at their end."""
    length = max(len(column) for column in columns)
    return [
        np.concatenate([column[min(i, len(column) - 1)] for column in columns], axis=1)
        for i in range(length)
    ]


def encode(frames: Sequence[np.ndarray]) -> bytes:
    """H.264 in an mp4 container."""
    from lerobot.utils.io_utils import write_video

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "film.mp4"
        write_video(path, list(frames), FPS)
        return path.read_bytes()
