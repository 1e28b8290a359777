"""The configuration of `pld-ray classifier train`."""

from __future__ import annotations

from dataclasses import dataclass

from pld_ray.config.train import ConfigError
from pld_ray.options import check_options, check_paths, option


@dataclass
class ClassifierConfig:
    """A reward classifier from frames: HIL-SERL's values (seed 003) where it has some."""

    dataset: list[str] = option(
        [], "LeRobotDatasets with cameras and `next.success`, of `pld-ray classifier collect`."
    )
    output_dir: str = option(
        "outputs/classifier", "Folder of the classifier; it must be new or empty.", path="new"
    )
    cameras: list[str] = option(
        [],
        "Cameras that it sees, such as `observation.images.image`; empty is all of the datasets.",
        distinct=True,
    )
    encoder: str = option(
        "resnet10",
        "Vision encoder, as `algorithm.vision_encoder_name`: `resnet10`, `cnn`, "
        "`torchvision:NAME` or `timm:NAME`.",
        values=("resnet10", "cnn"),
        prefixes=("torchvision:", "timm:"),
    )
    encoder_weights: str | None = option(
        None,
        "Local file of the encoder's weights, as `algorithm.vision_encoder_weights`; None draws "
        "them.",
        path="file",
    )
    train_encoder: bool = option(
        True, "Train the encoder too; false is HIL-SERL's, with pretrained `encoder_weights`."
    )
    spatial_features: int = option(
        8, "Learnt weighted sums over positions, of each channel.", within="[1, 1024]"
    )
    latent_dim: int = option(256, "Width of a camera's latent.", within="[1, 65536]")
    hidden_dim: int = option(256, "Width of the hidden layer.", within="[1, 65536]")
    dropout: float = option(0.1, "Share of activations that are dropped.", within="[0, 1)")
    image_shift: int = option(
        4,
        "Pixels of the random crop's padding, as `algorithm.random_shift_pad`.",
        within="[0, 128]",
    )
    steps: int = option(150, "Updates.", within="[1, 1e7]")
    batch_size: int = option(
        256, "Frames of an update, half of them successes.", within="[2, 65536]"
    )
    learning_rate: float = option(1e-4, "Of Adam.", within="(0, 1]")
    validation_share: float = option(
        0.2, "Share of the episodes that choose the threshold, never trained on.", within="(0, 1)"
    )
    min_precision: float = option(
        0.97,
        "The threshold is the lowest one with so much precision on the validation frames, or the "
        "most precise one where none has.",
        within="(0, 1]",
    )
    consecutive: int = option(
        2, "Frames in a row above the threshold that make a success.", within="[1, 1000]"
    )
    seed: int = option(
        0, "Of weights, batches, crops and the split by episode.", within="[0, 2147483647]"
    )

    def validate(self) -> None:
        """Raise ConfigError on a value out of its range, or a file that is not there."""
        try:
            check_options(self)
            check_paths(self)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        if not self.train_encoder and self.encoder_weights is None:
            raise ConfigError(
                "train_encoder=false: a frozen encoder needs encoder_weights, or it sees noise"
            )
