"""Small ALOHA recordings: a red square moves over a bluish picture."""

from __future__ import annotations

import pathlib

import cv2
import h5py
import numpy as np

CAMERAS = ("cam_high", "cam_left_wrist", "cam_right_wrist")
HEIGHT, WIDTH = 48, 64


def picture(step: int, shift: int = 0) -> np.ndarray:
    """RGB; the square is 16 pixels wide and stands at `step`."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [60 + 30 * np.sin(x / 13 + shift), 90 + 30 * np.cos(y / 11), 120 + 40 * np.sin(x / 17)]
    image = np.stack(waves, -1).astype(np.uint8)
    left = step % (WIDTH - 16)
    image[16:32, left : left + 16] = (230, 20, 20)
    return image


def write_episode(
    path: pathlib.Path,
    length: int = 6,
    seed: int = 0,
    *,
    jpeg: bool = False,
    bgr: bool = False,
    image_steps: list[int] | None = None,
    cameras: tuple[str, ...] = CAMERAS,
    motors: int = 14,
    extras: bool = True,
) -> pathlib.Path:
    """One file; `bgr`: red and blue are exchanged in what is stored."""
    rng = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["action"] = rng.normal(size=(length, motors))
        observations = file.create_group("observations")
        for name in ("qpos", "qvel", "effort")[: 3 if extras else 1]:
            observations[name] = rng.normal(size=(length, motors))
        steps = range(length) if image_steps is None else image_steps
        for shift, camera in enumerate(cameras):
            images = [picture(step, shift) for step in steps]
            images = [image[..., ::-1] for image in images] if bgr else images
            stored = [encode(image) for image in images] if jpeg else images
            if jpeg:
                longest = max(map(len, stored))
                stored = [np.pad(data, (0, longest - len(data))) for data in stored]
            observations[f"images/{camera}"] = np.stack(stored)
        if image_steps is not None:
            file["image_indices"] = np.array(image_steps)
    return path


def encode(image: np.ndarray) -> np.ndarray:
    """A JPEG file of an RGB image, [n] uint8."""
    quality = [cv2.IMWRITE_JPEG_QUALITY, 95]
    return cv2.imencode(".jpg", np.ascontiguousarray(image[..., ::-1]), quality)[1].ravel()


def write_folder(folder: pathlib.Path, **kwargs) -> pathlib.Path:
    """Two successes and a failure, of 6, 7 and 5 steps."""
    write_episode(folder / "score_5/episode_0.hdf5", 6, 0, **kwargs)
    write_episode(folder / "score_5/episode_1.hdf5", 7, 1, **kwargs)
    write_episode(folder / "score_1/episode_0.hdf5", 5, 2, **kwargs)
    return folder
