"""One ALOHA file into one part; what a worker process does, importing little."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field

import cv2
import numpy as np

from pld_ray.columns import IMAGE_PREFIX
from pld_ray.data import joint_convention as joints
from pld_ray.data.aloha_file import AlohaEpisode, Layout
from pld_ray.data.aloha_images import H5Images
from pld_ray.data.lerobot_format import Features
from pld_ray.data.parts import write_part


@dataclass(frozen=True)
class Settings:
    """What is made of every file; a conversion that is resumed must have the same."""

    repo_id: str
    task: str
    fps: int = 50
    mode: str = "image"
    """`image` or `video`."""
    reward: str = "last"
    """`last`: on the last frame of a success; `every_frame`: on each frame."""
    color: str = "auto"
    """`auto`, `rgb` or `bgr`."""
    joint_convention: str = "raw"
    """`raw` or `openpi`."""
    scores: dict[str, float] = field(default_factory=lambda: {"score_5": 1.0, "score_1": 0.0})
    """Folder -> reward."""
    episodes: str = ""
    """Numbers of the files that are converted; empty is all."""


@dataclass(frozen=True)
class PartJob:
    """One file, where it goes, and what the dataset looks like."""

    name: str
    path: pathlib.Path
    part: pathlib.Path
    value: float
    settings: Settings
    layout: Layout
    features: Features


def convert_episode(job: PartJob) -> int:
    """Write the part; returns its length.

    Raises:
        BadEpisode: the file cannot be used.
    """
    cv2.setNumThreads(1)
    with AlohaEpisode(job.path, job.layout, job.name) as episode:
        columns = episode_columns(episode, job)
        cameras = {}
        for name, images in episode.images.items():
            feature = job.features[IMAGE_PREFIX + name]
            images.swap = is_swapped(images, job.settings.color)
            images.shape = tuple(feature["shape"])
            cameras[IMAGE_PREFIX + name] = images
        success = job.value > 0
        about = {
            "source": job.name,
            "columns": {"source": job.name, "success": success, "score": job.value},
        }
        write_part(job.part, job.features, columns, cameras, job.settings.fps, about)
        return len(episode)


def episode_columns(episode: AlohaEpisode, job: PartJob) -> dict[str, np.ndarray]:
    """Every feature that is no camera."""
    length = len(episode)
    last = np.arange(length) == length - 1
    rewarded = last if job.settings.reward == "last" else np.ones(length, bool)
    state, action, others = episode.state, episode.action, episode.others
    if job.settings.joint_convention == "openpi":
        state, action = joints.openpi_state(state), joints.openpi_action(action)
        # velocities and efforts: signs only, a gripper's stay linear
        others = {kind: joints.flipped(values) for kind, values in others.items()}
    columns = {
        "observation.state": state.astype(np.float32),
        "action": action.astype(np.float32),
        "next.reward": np.where(rewarded, job.value, 0.0).astype(np.float32),
        "next.done": last,
        "next.success": last & (job.value > 0),
        "start": episode.start,
    }
    for kind, values in others.items():
        name = f"observation.{kind}"
        if name in job.features:
            columns[name] = values.astype(np.float32)
    return columns


def is_swapped(images: H5Images, color: str) -> bool:
    """Whether red and blue must be exchanged; `auto` trusts what the file declares."""
    return (images.declared_color() or "rgb" if color == "auto" else color) == "bgr"
