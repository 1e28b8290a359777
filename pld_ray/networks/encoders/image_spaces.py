"""Camera spaces that a vision encoder can read, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium as gym

from pld_ray.columns import IMAGE_PREFIX
from pld_ray.config.learner import LearnerParams
from pld_ray.networks.encoders.backbones import Backbone


def check_image_spaces(
    images: Mapping[str, tuple[tuple[int, ...], str]], backbone: Backbone | None = None
) -> None:
    """Raise ValueError unless every camera gives colour images of one size as uint8.

    Args:
        images: camera column -> (shape, dtype by name).
        backbone: the vision encoder, to check that they are large enough for it as well.
    """
    for name, (shape, dtype) in images.items():
        if len(shape) != 3 or shape[2] != 3:
            channels = shape[2] if len(shape) == 3 else 1
            raise ValueError(
                f"camera {name!r} gives images of shape {list(shape)} ({channels} channels): need "
                "[height, width, 3], colour; repeat a grey channel three times, drop an alpha one"
            )
        if dtype != "uint8":
            raise ValueError(
                f"camera {name!r} gives {dtype} images: need uint8, 0 to 255; they are scaled in "
                "the encoder"
            )
    sizes = {name: shape[:2] for name, (shape, _) in images.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {h} x {w}" for name, (h, w) in sizes.items())
        raise ValueError(f"cameras of different sizes ({listed}): render all at one size")
    if images and backbone is not None:  # all have one size: the first speaks for all
        name, (height, width) = next(iter(sizes.items()))
        try:
            backbone.feature_shape(height, width)
        except ValueError as error:
            raise ValueError(f"camera {name!r}: {error}") from error


def image_shapes(
    observations: gym.spaces.Dict, params: LearnerParams
) -> dict[str, tuple[int, int, int]]:
    """Cameras that the networks read, and their (H, W, 3); empty without a vision encoder.

    Raises:
        ValueError: an encoder without a camera, cameras of different sizes, grey or float images.
    """
    if params.vision_encoder_name == "none":
        return {}
    spaces = {k: s for k, s in sorted(observations.spaces.items()) if k.startswith(IMAGE_PREFIX)}
    if not spaces:
        raise ValueError(
            f"algorithm.vision_encoder_name={params.vision_encoder_name!r} but the environment has "
            "no camera: name some, for example --env.cameras=[image,image2], or set it to none"
        )
    shapes = {key: tuple(space.shape or ()) for key, space in spaces.items()}
    check_image_spaces({key: (shape, str(spaces[key].dtype)) for key, shape in shapes.items()})
    return {key: (shape[0], shape[1], shape[2]) for key, shape in shapes.items()}
