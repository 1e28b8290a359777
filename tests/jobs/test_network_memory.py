"""Networks and batches that cannot fit are refused before anything is allocated."""

import gymnasium as gym
import numpy as np
import pytest

from pld_ray.config import ConfigError
from pld_ray.config.acrlpd import ACRLPDParams
from pld_ray.config.acrlpd_train import ACRLPDTrainConfig
from pld_ray.jobs.build import check_network_memory

SPACES = gym.spaces.Dict({"observation.state": gym.spaces.Box(-1, 1, (8,), np.float32)})


def test_candidates_of_the_target_count():
    params = ACRLPDParams(batch_size=100_000)
    check_network_memory(ACRLPDTrainConfig(algorithm=ACRLPDParams()), SPACES)
    params.target_candidates = 1024
    with pytest.raises(
        ConfigError, match=r"a batch [\d,]+ GB.* or algorithm.target_candidates=1024"
    ):
        check_network_memory(ACRLPDTrainConfig(algorithm=params), SPACES)
