"""The viewer: refused before anything starts; what arrives, where its package is installed."""

import importlib.metadata
import subprocess

import numpy as np
import pytest

from pld_ray.config import InterventionConfig
from pld_ray.rollout.device import DeviceError
from pld_ray.rollout.live_view import PACKAGES, LiveView, check_view


def installed(package):
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.mark.parametrize("view", PACKAGES)
def test_a_viewer_that_is_not_installed_is_one_sentence(view):
    if installed(PACKAGES[view]):
        pytest.skip(f"{PACKAGES[view]} is installed")
    with pytest.raises(DeviceError, match=f"{PACKAGES[view]}, which is not installed: pip install"):
        check_view(InterventionConfig(view=view))


@pytest.mark.parametrize("address", ["9876", ":9876", "host:", "host:0", "host:70000", "host:x"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(ValueError, match="is no HOST:PORT"):
        InterventionConfig(view="rerun", view_address=address).view_at()
    assert InterventionConfig(view="rerun", view_address="::1:9876").view_at() == ("::1", 9876)


def test_rerun_receives_cameras_actions_and_who_acts(tmp_path):
    if not installed("rerun-sdk"):
        pytest.skip("rerun-sdk is not installed (lerobot[viz])")
    import rerun as rr

    view = LiveView(InterventionConfig(view="rerun", view_address="127.0.0.1:9"))
    rr.save(tmp_path / "seen.rrd")
    for step in range(3):
        observation = {
            "observation.images.image": np.full((4, 4, 3), step, np.uint8),
            "observation.state": np.zeros(2, np.float32),
            "base_action": np.zeros(3, np.float32),
        }
        view.show(observation, np.ones(3, np.float32), person_acts=step == 1)
    view.end_episode(success=True)
    view.show(observation, np.ones(3, np.float32), person_acts=False)
    view.close()
    command = ["rerun", "rrd", "print", str(tmp_path / "seen.rrd")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for path in ("observation.images.image", "action.executed", "action.base", "person_acts"):
        assert path in printed
