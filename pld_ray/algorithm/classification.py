"""Learning a reward classifier: balanced batches, a threshold, and how good it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from pld_ray.networks.augmentation import random_shift
from pld_ray.networks.reward_classifier import RewardClassifier


@dataclass(frozen=True)
class LabelledFrames:
    """Frames of several episodes.

    Attributes:
        images: camera -> [N, H, W, 3] uint8.
        success: [N] bool; what the simulator, or a person's key, said.
        episode: [N] int; frames of an episode follow each other.
    """

    images: Mapping[str, np.ndarray]
    success: np.ndarray
    episode: np.ndarray

    def __len__(self) -> int:
        return len(self.success)

    def where(self, rows: np.ndarray) -> LabelledFrames:
        """Some of the frames: indices, or [N] bool."""
        images = {camera: values[rows] for camera, values in self.images.items()}
        return LabelledFrames(images, self.success[rows], self.episode[rows])


def split_by_episode(
    frames: LabelledFrames, share: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows to validate on [N] bool: no episode is in both.

    Of the episodes with a success, and of those without, each `share` (at least one of the former)
    validates.

    Raises:
        ValueError: fewer than two episodes have a success.
    """
    episodes = np.unique(frames.episode)
    successful = np.unique(frames.episode[frames.success])
    if len(successful) < 2:
        raise ValueError(
            f"{len(successful)} of {len(episodes)} episodes have a success; two are needed, one to "
            "train on and one to choose the threshold: collect more"
        )
    held: list[np.ndarray] = []
    for group, least in ((successful, 1), (np.setdiff1d(episodes, successful), 0)):
        number = min(max(least, round(share * len(group))), max(0, len(group) - 1))
        held.append(rng.permutation(group)[:number])
    validates = np.isin(frames.episode, np.concatenate(held))
    return ~validates, validates


def fit(
    network: RewardClassifier,
    frames: LabelledFrames,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    image_shift: int,
    seed: int,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Minimise binary cross-entropy on batches of which half are successes.

    Args:
        network: ends in evaluation mode.
        frames: some successes and some others.
        steps, batch_size, learning_rate, image_shift: see `ClassifierConfig`.
        seed: of batches, crops and dropout; the global generator is left alone.
        on_step: is told the loss of each step.

    Raises:
        ValueError: one of the two kinds is missing.
    """
    kinds = [np.flatnonzero(frames.success), np.flatnonzero(~frames.success)]
    if not all(map(len, kinds)):
        raise ValueError("the training frames are all of one kind: collect successes and others")
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    weights = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=learning_rate)
    network.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for step in range(steps):
            half = batch_size // 2
            rows = np.concatenate([rng.choice(kinds[0], half), rng.choice(kinds[1], half)])
            images = {
                camera: random_shift(torch.from_numpy(values[rows]), image_shift, generator)
                for camera, values in frames.images.items()
            }
            target = torch.from_numpy(frames.success[rows]).float()
            loss = F.binary_cross_entropy_with_logits(network(images), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            on_step(step, float(loss.detach()))
    network.eval()


@dataclass(frozen=True)
class PrecisionRecall:
    """The curve over all thresholds that tell frames apart, by rising threshold [K]."""

    thresholds: np.ndarray
    precision: np.ndarray
    recall: np.ndarray


def precision_recall(probability: np.ndarray, success: np.ndarray) -> PrecisionRecall:
    """Precision and recall of "probability >= threshold" at each value that occurs.

    Args:
        probability: [N].
        success: [N] bool, at least one.
    """
    order = np.argsort(-probability, kind="stable")
    ranked, hits = probability[order], np.cumsum(success[order])
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # of equal ones
    precision, recall = hits[last] / (last + 1), hits[last] / success.sum()
    return PrecisionRecall(ranked[last][::-1], precision[::-1], recall[::-1])


def choose_threshold(curve: PrecisionRecall, min_precision: float) -> float:
    """The lowest threshold with the precision; the most precise one where none has it.

    It lies halfway to the next lower probability that occurs, so that it parts what it parts with
    room on both sides.
    """
    enough = np.flatnonzero(curve.precision >= min_precision)
    k = int(enough[0]) if len(enough) else int(np.argmax(curve.precision))
    below = curve.thresholds[k - 1] if k else 0.0
    return float((curve.thresholds[k] + below) / 2)


def fires(positive: Sequence[bool] | np.ndarray, consecutive: int) -> int | None:
    """Index of the frame of an episode with which it is a success; None where it never is."""
    in_a_row = 0
    for k, each in enumerate(positive):
        in_a_row = in_a_row + 1 if each else 0
        if in_a_row >= consecutive:
            return k
    return None


def judge(
    frames: LabelledFrames, probability: np.ndarray, threshold: float, consecutive: int
) -> dict[str, float]:
    """How good a classifier is: on frames, and as the judge of whole episodes.

    `precision`, `recall`: of frames. `episode_precision`: of the episodes that it ends, those in
    which it did so at a success. `episode_recall`: of the episodes with a success, those that it
    ended at one. NaN where there is nothing to divide by.
    """
    positive = probability >= threshold
    hits = int((positive & frames.success).sum())
    ended = right = 0
    for episode in np.unique(frames.episode):
        rows = frames.episode == episode
        at = fires(positive[rows], consecutive)
        ended += at is not None
        right += at is not None and bool(frames.success[rows][at])
    reached = len(np.unique(frames.episode[frames.success]))
    return {
        "precision": share(hits, int(positive.sum())),
        "recall": share(hits, int(frames.success.sum())),
        "episode_precision": share(right, ended),
        "episode_recall": share(right, reached),
        "frames": len(frames),
        "successes": int(frames.success.sum()),
        "episodes": len(np.unique(frames.episode)),
    }


def share(part: int, whole: int) -> float:
    """`part / whole`, NaN of nothing."""
    return part / whole if whole else float("nan")
