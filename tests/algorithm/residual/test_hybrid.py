"""Discrete grippers: the meaning of each choice, and the double-DQN losses."""

import pytest
import torch

from pld_ray.algorithm.residual import hybrid
from pld_ray.networks import grippers
from pld_ray.networks.discrete_critic import DiscreteCritic


def test_hold_keeps_the_base_command_and_the_others_replace_it():
    action = torch.tensor([[0.1, -0.7], [0.2, -0.7], [0.3, -0.7]])
    joint = torch.tensor([grippers.OPEN, grippers.HOLD, grippers.CLOSE])
    composed = grippers.compose_gripper(action, joint, [1])
    assert composed[:, 1].tolist() == pytest.approx([-1.0, -0.7, 1.0])
    assert torch.equal(composed[:, 0], action[:, 0])
    assert action[0, 1].item() == pytest.approx(-0.7)  # the input is left alone


def test_two_arms_choose_independently():
    assert grippers.num_joint_choices(2) == 9
    seen = set()
    for joint in range(9):
        action = torch.full((1, 14), 0.5)
        composed = grippers.compose_gripper(action, torch.tensor([joint]), [6, 13])[0]
        seen.add((composed[6].item(), composed[13].item()))
        others = [d for d in range(14) if d not in (6, 13)]
        assert (composed[others] == 0.5).all()
    assert seen == {(a, b) for a in (-1.0, 0.5, 1.0) for b in (-1.0, 0.5, 1.0)}
    both = grippers.split_choices(torch.tensor([grippers.hold_all(2)]), 2)
    assert both.tolist() == [[grippers.HOLD, grippers.HOLD]]


def test_the_first_gripper_counts_fastest_in_a_joint_choice():
    joint = torch.tensor([grippers.OPEN + 3 * grippers.CLOSE, grippers.CLOSE + 3 * grippers.HOLD])
    assert grippers.split_choices(joint, 2).tolist() == [
        [grippers.OPEN, grippers.CLOSE],
        [grippers.CLOSE, grippers.HOLD],
    ]
    composed = grippers.compose_gripper(torch.full((2, 3), 0.5), joint, [2, 0])
    assert composed.tolist() == [[1.0, 0.5, -1.0], [0.5, 0.5, 1.0]]


def test_double_dqn_selects_online_and_evaluates_with_the_target():
    online = torch.tensor([[0.1, 0.9, 0.3], [0.5, 0.2, 0.1]])
    target = torch.tensor([[5.0, 0.4, 7.0], [0.3, 9.0, 9.0]])
    reward, penalty = torch.tensor([0.0, 1.0]), torch.tensor([-0.02, 0.0])
    discount = torch.tensor([0.9, 0.0])
    y = hybrid.discrete_td_target(reward, penalty, discount, online, target)
    torch.testing.assert_close(y, torch.tensor([-0.02 + 0.9 * 0.4, 1.0]))


def test_the_loss_moves_only_the_choice_that_was_made():
    q = torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], requires_grad=True)
    loss = hybrid.discrete_critic_loss(q, torch.tensor([1, 2]), torch.tensor([0.5, 5.0]))
    assert loss.item() == pytest.approx((0.5**2 + 0.0) / 2)
    loss.backward()
    torch.testing.assert_close(q.grad, torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.0, 0.0]]))


def test_an_untrained_critic_holds():
    critic = DiscreteCritic(4, 2, 9, (8,), preferred=grippers.hold_all(2))
    choice = critic(torch.randn(32, 4), torch.randn(32, 2)).argmax(-1)
    assert (choice == grippers.hold_all(2)).all()


def test_a_choice_that_nobody_made_is_worth_no_more_however_far_the_state_lies():
    torch.manual_seed(0)
    far = 1e4 * torch.randn(32, 4), torch.randn(32, 2)
    for layer_norm in (True, False):
        critic = DiscreteCritic(4, 2, 3, (8,), layer_norm)
        torch.nn.init.uniform_(critic.head.weight, -1.0, 1.0)
        # eight normalised units have length sqrt(8), and |w| <= 1
        bounded = bool((critic(*far).abs() <= 8.0 + 1e-3).all())
        assert bounded is layer_norm
