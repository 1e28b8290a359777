"""Parts that two processes write at the same time."""

from __future__ import annotations

import os

import numpy as np

from pld_ray.data import lerobot_format as v3
from pld_ray.data.parts import read_description, stored_features, write_part


class Images:
    """What is done while the first one is read, then black ones."""

    def __init__(self, meanwhile):
        self.meanwhile = [meanwhile]

    def pixels(self, frame):
        if self.meanwhile:
            self.meanwhile.pop()()
        return np.zeros((8, 8, 3), np.uint8)

    def encoded(self, frame):
        return None


def test_a_part_that_an_orphan_has_finished_meanwhile_is_kept(tmp_path):
    features = stored_features(
        {"observation.images.a": v3.camera("image", 8, 8), "action": v3.vector(["x", "y"])}
    )

    def write(folder, who, meanwhile):
        columns = {"action": np.zeros((2, 2), np.float32)}
        cameras = {"observation.images.a": Images(meanwhile)}
        write_part(folder, features, columns, cameras, 10, {"who": who})

    write(tmp_path / "orphans", "orphan", lambda: None)
    part = tmp_path / "part"
    write(part, "this", lambda: os.rename(tmp_path / "orphans", part))
    assert read_description(part)["who"] == "orphan"
    assert os.listdir(tmp_path) == ["part"]
