"""Updates of ACRLPD on a GPU."""

import math

import pytest
import torch
from chunked_fixtures import SMALL_CNN, make_update

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"critic_atoms": 11, "precision": "bfloat16"},
        {"improvement": "distill"},
        {"actor": "gaussian", "improvement": "sac", "temperature": 0.1},
        SMALL_CNN,
    ],
)
def test_updates_are_made_and_their_state_goes_on(options):
    one, other = make_update(device="cuda", **options), make_update(device="cuda", **options)
    assert {tensor.device.type for tensor in one.networks.state_dict().values()} == {"cuda"}
    for value in one.run(3).values():
        assert math.isfinite(value)
    other.load_state_dict(one.state_dict())
    assert math.isfinite(other.run(2)["critic_loss"])
