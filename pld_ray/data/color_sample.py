"""A picture to see whether red and blue are where they belong, before hours of converting."""

from __future__ import annotations

import pathlib

import cv2
import numpy as np

from pld_ray.data.aloha_file import AlohaEpisode, Layout
from pld_ray.data.aloha_part import is_swapped

HEIGHT, CAPTION = 240, 28


def write_color_sample(
    path: pathlib.Path, layout: Layout, color: str, target: pathlib.Path
) -> None:
    """First images of one file: as they are converted above, with red and blue exchanged below."""
    tiles = []
    with AlohaEpisode(path, layout, path.name) as episode:
        for name, images in episode.images.items():
            order = "bgr" if is_swapped(images, color) else "rgb"
            images.swap = order == "bgr"
            image = images.pixels(0)
            width = max(1, round(image.shape[1] * HEIGHT / image.shape[0]))
            small = cv2.resize(image, (width, HEIGHT), interpolation=cv2.INTER_AREA)
            other = "rgb" if order == "bgr" else "bgr"
            captions = (f"{name}: --color={order}, as converted", f"--color={other} would give")
            pictures = (small, np.ascontiguousarray(small[..., ::-1]))
            wide = max(width, 8 * max(map(len, captions)))
            sheets = zip(pictures, captions, strict=True)
            tiles.append(np.concatenate([captioned(*sheet, wide) for sheet in sheets]))
    page = np.concatenate(tiles, axis=1) if tiles else np.zeros((1, 1, 3), np.uint8)
    target.write_bytes(cv2.imencode(".png", cv2.cvtColor(page, cv2.COLOR_RGB2BGR))[1].tobytes())


def captioned(image: np.ndarray, text: str, width: int) -> np.ndarray:
    """The image below a line of text."""
    canvas = np.full((HEIGHT + CAPTION, width, 3), 255, np.uint8)
    canvas[CAPTION:, : image.shape[1]] = image
    font = cv2.FONT_HERSHEY_SIMPLEX
    cv2.putText(canvas, text, (4, 19), font, 0.42, (0, 0, 0), 1, cv2.LINE_AA)
    return canvas
