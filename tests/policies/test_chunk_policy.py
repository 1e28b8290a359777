"""Chunks of a learnt policy for several observations at once: no row depends on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_actor import OBSERVATIONS, H, make_parts
from tiny_policies import make_observations, save_policy

from pld_ray.config import ConfigError
from pld_ray.config.acrlpd_train import check_batch_rows
from pld_ray.policies.chunk_policy import ChunkPolicy

ROWS = 4
SHAPES = {key: space.shape for key, space in OBSERVATIONS.spaces.items()}


@pytest.fixture(scope="module", params=["smolvla", "pi0"])
def networks(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    folder = save_policy(request.param, root), root / "tokenizer"
    networks, _, _ = make_parts(folder, num_candidates=5)
    networks.keep_what_acts()
    return networks.requires_grad_(False).eval()


def infer(policy, observations, rows):
    given = {key: value[rows] for key, value in observations.items()}
    return policy.infer(given, [""] * len(rows), rows, [[7, row] for row in rows]).chunks


def test_a_row_is_the_same_bits_wherever_it_stands_and_whoever_is_beside_it(networks):
    policy = ChunkPolicy(networks, SHAPES, seed=(), batch_rows=ROWS)
    observations = make_observations(2 * ROWS, 0)
    every = infer(policy, observations, list(range(2 * ROWS)))
    assert every.shape == (2 * ROWS, H, 7)
    for rows in ([0], [5, 2], [3, 1, 0], [7, 6, 5, 4, 3], list(reversed(range(2 * ROWS)))):
        np.testing.assert_array_equal(infer(policy, observations, rows), every[rows])
    one_by_one = infer(ChunkPolicy(networks, SHAPES, seed=()), observations, list(range(2 * ROWS)))
    np.testing.assert_allclose(every, one_by_one, atol=1e-4)
    assert np.abs(np.diff(every, axis=0)).max() > 1e-3  # rows differ


def test_batches_that_could_not_be_are_refused():
    check_batch_rows(4, True, "lerobot", 16)
    for pooled, actor in ((False, "lerobot"), (True, "flow")):
        with pytest.raises(ConfigError, match=r"policy.batch_rows=4: must be null but with"):
            check_batch_rows(4, pooled, actor, 16)
    with pytest.raises(ConfigError, match=r"at most policy.max_batch_size=3"):
        check_batch_rows(4, True, "lerobot", 3)
