"""Gradients of a step are those of `backward`, whatever memory autograd gives them."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from pld_ray.algorithm.gradient_steps import GradientSteps

CLIP = 0.5


class Sums(nn.Module):
    """Parameters to which autograd gives one tensor (`left`, `right`), parts of one (`place`,
    `first`, `others`), or one number (`shift`)."""

    def __init__(self):
        super().__init__()
        self.left = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
        self.right = nn.Parameter(torch.tensor([0.3, 0.1, -0.7]))
        self.shift = nn.Parameter(torch.tensor([0.2, 0.4]))
        self.place = nn.Parameter(torch.tensor([0.1, 0.2, -0.3]))
        self.first = nn.Parameter(torch.tensor([0.6]))
        self.others = nn.Parameter(torch.tensor([-0.4, 0.9]))
        self.nothing = nn.Parameter(torch.zeros(0))
        self.empty = nn.Parameter(torch.zeros(0))

    def loss(self, x):
        joined = self.place + torch.cat([self.first, self.others])
        added = self.left + self.right
        return (added * x).pow(2).sum() + (joined * x).pow(2).sum() + self.shift.sum() * x.sum()


def steps_on(actor):
    nothing = nn.Module()
    networks = nn.Module()
    networks.action_low = torch.zeros(1)
    networks.critic = networks.target_critic = networks.encoder = nothing
    networks.critic_encoder = networks.target_encoder = nothing
    params = SimpleNamespace(
        precision="float32", critic_dropout=0.0, compile_backend="none", value_range=(0.0, 1.0),
        grad_clip_norm=CLIP,
    )  # fmt: skip
    optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
    group = {"actor": list(actor.parameters())}
    return GradientSteps(networks, {"actor": optimizer}, None, params, 0, group)


@pytest.mark.parametrize("parts", [[[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0], [-0.5, 0.1, 2.0]]])
def test_parameters_that_share_a_gradient_are_clipped_and_summed_once(parts):
    actor = Sums()
    reference = copy.deepcopy(actor)
    steps = steps_on(actor)
    for part in parts:
        steps.add("actor", actor.loss(torch.tensor(part)))
        reference.loss(torch.tensor(part)).backward()
    steps.apply("actor", {})

    norm = nn.utils.clip_grad_norm_(reference.parameters(), CLIP)
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    assert steps.metrics.means()["actor_grad_norm"] == pytest.approx(norm.item())
    for name, parameter in actor.named_parameters():
        torch.testing.assert_close(parameter, reference.get_parameter(name), msg=name)
