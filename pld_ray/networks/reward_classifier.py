"""A reward classifier: does a frame show success? And the folder that keeps it."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from pld_ray.errors import UserError
from pld_ray.files.atomic import write_json_atomically
from pld_ray.files.manifest import checksum, sha256
from pld_ray.files.tensors import save_tensors
from pld_ray.networks.encoders import SpatialLearnedEmbeddings, build_backbone
from pld_ray.networks.encoders.pooling import vector_encoder

CNN_CHANNELS = 32
"""Of the encoder `cnn`, as in LeRobot's HIL-SERL."""
AT_ONCE = 64
"""Images in a pass."""
ABOUT_FILE, WEIGHTS_FILE = "classifier.json", "classifier.safetensors"


class ClassifierError(UserError, ValueError):
    """A classifier's folder is none, or is damaged, or sees other cameras."""


@dataclass(frozen=True)
class ClassifierShape:
    """What a classifier is made of.

    Attributes:
        cameras: observation -> (height, width) of its images.
        encoder: see `build_backbone`.
        spatial_features, latent_dim, hidden_dim, dropout: see `ClassifierConfig`.
    """

    cameras: Mapping[str, tuple[int, int]]
    encoder: str = "resnet10"
    spatial_features: int = 8
    latent_dim: int = 256
    hidden_dim: int = 256
    dropout: float = 0.1


class RewardClassifier(nn.Module):
    """One encoder for all cameras; each camera's spatial embeddings, Linear, LayerNorm, tanh; then
    Linear, dropout, LayerNorm, ReLU, Linear (HIL-SERL's `BinaryClassifier`).

    Args:
        shape: what it is made of.
        weights: of the encoder; None draws them.
        train_encoder: whether gradients reach the encoder.
        seed: of all random weights; the global generator is left alone.
    """

    def __init__(
        self,
        shape: ClassifierShape,
        weights: str | None = None,
        train_encoder: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.shape, self.train_encoder = shape, train_encoder
        self.encoder = build_backbone(shape.encoder, weights, CNN_CHANNELS, seed)
        self.encoder.requires_grad_(train_encoder)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + 1)
            self.heads = nn.ModuleList(
                self._head(*self.encoder.feature_shape(*size)) for size in shape.cameras.values()
            )
            self.out = nn.Sequential(
                nn.Linear(shape.latent_dim * len(shape.cameras), shape.hidden_dim),
                nn.Dropout(shape.dropout),
                nn.LayerNorm(shape.hidden_dim),
                nn.ReLU(),
                nn.Linear(shape.hidden_dim, 1),
            )

    def _head(self, channels: int, height: int, width: int) -> nn.Module:
        shape = self.shape
        return nn.Sequential(
            SpatialLearnedEmbeddings(channels, height, width, shape.spatial_features),
            nn.Dropout(shape.dropout),
            vector_encoder(channels * shape.spatial_features, shape.latent_dim),
        )

    def forward(self, images: Mapping[str, Tensor]) -> Tensor:
        """Logits [B] of images [B, H, W, 3] uint8 by camera."""
        latents = []
        for camera, head in zip(self.shape.cameras, self.heads, strict=True):
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.train_encoder):
                features = self.encoder(images[camera])
            latents.append(head(features))
        return self.out(torch.cat(latents, 1)).squeeze(1)

    @torch.no_grad()
    def probabilities(self, images: Mapping[str, Any]) -> Tensor:
        """Probability of success [N] of images [N, H, W, 3] uint8, without dropout."""
        was_training = self.training
        self.eval()
        tensors = {camera: torch.as_tensor(images[camera]) for camera in self.shape.cameras}
        n = len(next(iter(tensors.values())))
        parts = [
            self({camera: each[k : k + AT_ONCE] for camera, each in tensors.items()})
            for k in range(0, n, AT_ONCE)
        ]
        self.train(was_training)
        return torch.cat(parts).sigmoid() if parts else torch.zeros(0)


@dataclass(frozen=True)
class TrainedClassifier:
    """A classifier with the threshold that was chosen for it.

    Attributes:
        network: in evaluation mode.
        threshold: a probability above it is a positive frame.
        consecutive: positive frames in a row that make a success.
        about: plain values: where it comes from, precision and recall.
    """

    network: RewardClassifier
    threshold: float
    consecutive: int
    about: Mapping[str, Any]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the folder that `load_classifier` reads."""
        root = pathlib.Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        state = {name: t.contiguous() for name, t in self.network.state_dict().items()}
        save_tensors(state, root / WEIGHTS_FILE)
        shape = asdict(self.network.shape)
        shape["cameras"] = {name: list(size) for name, size in shape["cameras"].items()}
        own = {"threshold": self.threshold, "consecutive": self.consecutive}
        write_json_atomically(root / ABOUT_FILE, {"shape": shape, **own, "about": self.about})

    def check_cameras(self, images: Mapping[str, Sequence[int]], where: str) -> None:
        """Refuse images of other cameras, or of another size.

        Args:
            images: camera -> shape [H, W, 3].
            where: who gives them, for the message.
        """
        for camera, size in self.network.shape.cameras.items():
            found = images.get(camera)
            if found is None or tuple(found[:2]) != tuple(size):
                given = {name: list(shape[:2]) for name, shape in images.items()}
                raise ClassifierError(
                    f"the reward classifier sees {camera} of {size[0]} x {size[1]} pixels and "
                    f"{where} gives {given or 'no images'}: set env.cameras and env.image_size as "
                    "they were when its frames were collected"
                )


def classifier_fingerprint(folder: str | os.PathLike[str]) -> str:
    """What the verdicts of a classifier depend on: a digest of its files, wherever they lie.

    Raises:
        ClassifierError: one of them is missing.
    """
    root = pathlib.Path(folder)
    try:
        return checksum([sha256(root / name) for name in (ABOUT_FILE, WEIGHTS_FILE)])
    except OSError as error:
        raise no_classifier(root, error) from None


def no_classifier(root: pathlib.Path, error: OSError) -> ClassifierError:
    """The error of a folder in which a file cannot be read."""
    name = pathlib.Path(error.filename or ABOUT_FILE).name
    return ClassifierError(
        f"{root} is no reward classifier, {name} is missing: give a folder of `pld-ray classifier "
        "train`"
    )


def load_classifier(folder: str | os.PathLike[str]) -> TrainedClassifier:
    """The classifier in a folder of `pld-ray classifier train`.

    Raises:
        ClassifierError: there is none, or a file of it is damaged.
    """
    root = pathlib.Path(folder)
    path = root / ABOUT_FILE
    try:
        state = json.loads(path.read_text())
        shape = dict(state["shape"])
        shape["cameras"] = {name: tuple(size) for name, size in shape["cameras"].items()}
        network = RewardClassifier(ClassifierShape(**shape))
        network.load_state_dict(load_file(root / WEIGHTS_FILE))
        threshold, consecutive = float(state["threshold"]), int(state["consecutive"])
        about = dict(state["about"])
    except FileNotFoundError as error:
        raise no_classifier(root, error) from None
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ClassifierError(f"{root} is damaged ({line}): train it again") from None
    return TrainedClassifier(network.eval(), threshold, consecutive, about)
