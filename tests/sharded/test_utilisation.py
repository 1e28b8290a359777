"""What is counted of an update, and what share of the device that is."""

from __future__ import annotations

import pytest
import torch
from tiny_trainers import random_batch, save_tiny, tiny_trainer

from pld_ray.sharded.utilisation import Utilisation


def counted(update):
    utilisation = Utilisation("cpu", torch.float32, samples=6)
    with utilisation.of_update():
        update()
    return utilisation.flops


def test_the_operations_of_a_layer_and_of_attention_by_hand():
    layer, x = torch.nn.Linear(8, 4), torch.ones(6, 8)
    product = 2 * 6 * 8 * 4
    assert counted(lambda: layer(x).sum()) == product
    assert counted(lambda: layer(x).sum().backward()) == 2 * product  # x has no gradient

    q, k, v = (torch.ones(2, 3, 5, 7, requires_grad=True) for _ in range(3))
    product = 2 * 2 * 3 * 5 * 5 * 7

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    assert counted(attend) == 2 * product
    # its backward makes the weights again, and four gradients
    assert counted(lambda: attend().sum().backward()) == (2 + 5) * product


def test_the_first_update_is_counted_and_the_others_are_timed(monkeypatch):
    clock = iter([10.0, 10.5, 11.0, 12.5])
    utilisation = Utilisation("cpu", torch.float32, samples=6)
    a = torch.ones(4, 4)
    with utilisation.of_update():
        torch.mm(a, a)
    assert utilisation.take() == {}
    utilisation.peak = 1000.0
    monkeypatch.setattr("pld_ray.sharded.utilisation.time.monotonic", lambda: next(clock))
    for _ in range(2):  # .5 and 1.5 s
        with utilisation.of_update():
            pass
    assert utilisation.take() == {
        "time/samples_per_s": 6.0,
        "time/tflops_per_s": 128e-12,
        "time/flop_utilisation": pytest.approx(0.128),
    }
    assert utilisation.take() == {}


def test_counting_changes_no_number_of_a_policy(tmp_path):
    folder = save_tiny("act", tmp_path)
    ends = []
    for counts in (False, True):
        with tiny_trainer(folder) as ours:
            batch = random_batch(ours.trainee.needed, 4)
            if counts:
                assert counted(lambda t=ours, b=batch: t.update([b])) > 1e6
            else:
                ours.update([batch])
            ends.append(ours.average_state())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
