"""A camera's video, and what its encoder leaves behind."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pld_ray.data.video_files import VideoEncoder, read_frames


def policies():
    """How each thread of this process is scheduled."""
    return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="Linux schedules threads so")
@pytest.mark.skipif(os.geteuid() != 0, reason="the encoder asks for priority as root alone")
def test_an_encoder_takes_no_priority(tmp_path):
    """As root SVT-AV1 would make this thread, and all that it starts, real-time ones."""
    before = policies()
    encoder = VideoEncoder(tmp_path / "video.mp4", 20, 64, 48)
    images = [np.full((64, 48, 3), value, np.uint8) for value in (0, 90, 180)]
    for image in images:
        encoder.add(image)
    assert policies() == before
    encoder.close()
    assert policies() == before
    read = read_frames(tmp_path / "video.mp4", [0.0, 0.05, 0.1], 20)
    for image, found in zip(images, read, strict=True):
        np.testing.assert_allclose(found, image, atol=4)
