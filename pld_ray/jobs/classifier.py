"""`pld-ray classifier`: frames with success signals, a classifier of them, and how good it is."""

from __future__ import annotations

import io
import math
import pathlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pld_ray.algorithm.classification import (
    LabelledFrames,
    PrecisionRecall,
    choose_threshold,
    fit,
    judge,
    precision_recall,
    split_by_episode,
)
from pld_ray.config.classifier import ClassifierConfig
from pld_ray.data.dataset import Dataset, open_all
from pld_ray.data.episode_columns import FINAL, restored
from pld_ray.data.errors import DataError
from pld_ray.files.atomic import write_atomically
from pld_ray.networks.reward_classifier import (
    ClassifierShape,
    RewardClassifier,
    TrainedClassifier,
    load_classifier,
)
from pld_ray.runs.new_folder import check_empty

LABEL = "next.success"
PICTURE_FILE = "precision_recall.png"
MARGIN = 0.2
"""Of what the picture shows around the curve's lowest precision."""


# --- frames ---------------------------------------------------------------------------------------


def read_frames(paths: Sequence[str | pathlib.Path], cameras: Sequence[str] = ()) -> LabelledFrames:
    """All frames of datasets with their labels, in memory.

    A frame is a success if the step that led to it was (`next.success` of the row before); the
    final observation of an episode is one of its frames, where the dataset keeps it.

    Args:
        paths: of datasets, or of folders of them.
        cameras: which are read; all of the first dataset if there are none.

    Raises:
        DataError: no cameras, no labels, datasets of different cameras, or a success that no frame
            shows.
    """
    images: dict[str, list[np.ndarray]] = {}
    success: list[np.ndarray] = []
    episode: list[np.ndarray] = []
    for dataset in open_all(paths):
        cameras = list(cameras) or dataset.cameras
        if not cameras:
            raise DataError(f"{dataset.root} has no cameras: collect it with --env.cameras=[image]")
        dataset.require([*cameras, LABEL])
        labels = dataset.columns([LABEL])[LABEL].astype(bool)
        for index, (first, length) in enumerate(
            zip(dataset.first_frames, dataset.lengths, strict=True)
        ):
            seen = {camera: episode_images(dataset, index, camera) for camera in cameras}
            number = min(len(each) for each in seen.values())
            for camera, each in seen.items():
                images.setdefault(camera, []).append(each[:number])
            after = labels[first : first + length]
            shown = np.concatenate([[False], after])[:number]
            if after.any() and not shown.any():
                raise DataError(
                    f"{dataset.root}, episode {index}: {LABEL} is true of its last frame alone, so "
                    "success shows in the observation after it, which the dataset does not keep: "
                    "record episodes that go on after a success (pld-ray classifier collect), or "
                    f"set {LABEL} one frame before the first that shows the success and from there "
                    "on"
                )
            success.append(shown)
            episode.append(np.full(number, len(episode)))
    try:
        stacked = {camera: np.concatenate(parts) for camera, parts in images.items()}
    except ValueError as error:
        raise DataError(f"{', '.join(map(str, paths))}: images of different sizes") from error
    return LabelledFrames(stacked, np.concatenate(success), np.concatenate(episode))


def episode_images(dataset: Dataset, index: int, camera: str) -> np.ndarray:
    """Images of an episode [L + 1, H, W, 3], or [L, ...] where the final one is not kept."""
    row = dataset.episodes[index]
    images = np.stack(dataset.images(index, camera, range(row["length"])))
    final = row.get(f"{FINAL}{camera}")
    return images if final is None else np.concatenate([images, restored(final, images[0])[None]])


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """What a training has brought.

    Attributes:
        classifier: in its folder.
        validation: figures of `judge` on the validation episodes.
        picture: of the precision/recall curve.
    """

    classifier: TrainedClassifier
    validation: dict[str, float]
    picture: pathlib.Path


def train_classifier(
    config: ClassifierConfig, on_step: Callable[[int, float], None] = lambda step, loss: None
) -> Trained:
    """Train on part of the episodes, choose the threshold on the others, write the folder.

    Raises:
        ConfigError: the folder is not empty.
        DataError: the datasets cannot be learnt from.
    """
    folder = pathlib.Path(config.output_dir)
    check_empty(folder, "output_dir")
    frames = read_frames(config.dataset, config.cameras)
    try:
        rng = np.random.default_rng(config.seed)
        learns, validates = split_by_episode(frames, config.validation_share, rng)
        shape = ClassifierShape(
            {camera: each.shape[1:3] for camera, each in frames.images.items()},
            config.encoder,
            config.spatial_features,
            config.latent_dim,
            config.hidden_dim,
            config.dropout,
        )
        network = RewardClassifier(shape, config.encoder_weights, config.train_encoder, config.seed)
        fit(
            network,
            frames.where(learns),
            steps=config.steps,
            batch_size=config.batch_size,
            learning_rate=config.learning_rate,
            image_shift=config.image_shift,
            seed=config.seed,
            on_step=on_step,
        )
    except ValueError as error:
        raise DataError(f"{', '.join(config.dataset)}: {error}") from error
    held = frames.where(validates)
    probability = network.probabilities(held.images).numpy()
    curve = precision_recall(probability, held.success)
    threshold = choose_threshold(curve, config.min_precision)
    validation = judge(held, probability, threshold, config.consecutive)
    about = {"dataset": list(config.dataset), "validation": plain(validation)}
    trained = TrainedClassifier(network, threshold, config.consecutive, about)
    trained.save(folder)
    return Trained(trained, validation, plot_curve(curve, validation, folder / PICTURE_FILE))


def plain(figures: dict[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: None if math.isnan(value) else value for name, value in figures.items()}


def evaluate_classifier(
    folder: str | pathlib.Path, paths: Sequence[str]
) -> tuple[dict[str, float], pathlib.Path]:
    """How good a classifier is on datasets that it has never seen, and a picture beside it.

    Raises:
        ClassifierError: the folder is none, or the datasets are of other cameras.
        DataError: the datasets have no frames to judge.
    """
    trained = load_classifier(folder)
    cameras = list(trained.network.shape.cameras)
    for dataset in open_all(paths):
        shapes = {camera: dataset.shape(camera) for camera in dataset.cameras}
        trained.check_cameras(shapes, str(dataset.root))
    frames = read_frames(paths, cameras)
    if not frames.success.any():
        raise DataError(f"{', '.join(paths)}: no frame shows a success, so there is no recall")
    probability = trained.network.probabilities(frames.images).numpy()
    figures = judge(frames, probability, trained.threshold, trained.consecutive)
    curve = precision_recall(probability, frames.success)
    name = f"precision_recall_{pathlib.Path(paths[0]).name}.png"
    return figures, plot_curve(curve, figures, pathlib.Path(folder) / name)


def plot_curve(
    curve: PrecisionRecall, figures: dict[str, float], path: pathlib.Path
) -> pathlib.Path:
    """Precision over recall, and the chosen threshold on it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(curve.recall, curve.precision, drawstyle="steps-post", color="#1d6fb8")
    axes.plot(figures["recall"], figures["precision"], "o", color="#c2410c")
    axes.set_title(f"{figures['frames']:,} frames, {figures['successes']:,} show success")
    lowest = max(0.0, float(curve.precision.min()) - MARGIN)
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1.02), ylim=(lowest, 1.02))
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    write_atomically(path, buffer.getvalue())
    return path
