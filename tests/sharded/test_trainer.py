"""An update against the same update by hand, in parts, and after a restart."""

import copy
import dataclasses
import json
import math
import shutil
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sharded_data import write_dataset
from tiny_trainers import random_batch, save_tiny, tiny_trainer, tokenizer

from pld_ray.algorithm.nonfinite import NonFiniteTrainingError
from pld_ray.config import ConfigError
from pld_ray.config.finetune import FinetuneConfig, FinetuneParams
from pld_ray.data.training_windows import Needed, TrainingWindows, find_episodes
from pld_ray.files.manifest import CheckpointError
from pld_ray.policies import EMBEDDED_ACT, load_base_policy
from pld_ray.policies.checkpoint import PolicyCheckpoint
from pld_ray.runs.run_dir import RunError
from pld_ray.sharded.components import AVERAGE, OPTIMIZER, POLICY, STATE
from pld_ray.sharded.optimization import (
    MovingAverage,
    learning_rate_share,
    make_optimizer,
    moving_average,
)
from pld_ray.sharded.policy_folder import write_policy_folder
from pld_ray.sharded.shards import check_one_precision
from pld_ray.sharded.trainee import check_sizes, load_trainee, rounding_warning
from pld_ray.sharded.trainer import Trainer, batches_from

PARAMS = FinetuneParams(batch_size=8, learning_rate=1e-3, warmup_updates=2, grad_clip_norm=0.5)


@pytest.fixture(scope="module")
def windows(tmp_path_factory):
    root = tmp_path_factory.mktemp("data") / "d"
    write_dataset(root, (12, 3, 9, 20, 7))
    trainee = load_trainee(FinetuneConfig())
    return TrainingWindows(find_episodes([root], trainee.needed, True), trainee.needed)


def trainer(params=PARAMS, **config):
    return Trainer(load_trainee(FinetuneConfig(algorithm=params, **config)), params, 10, seed=1)


def run(trainer, windows, updates):
    for batches in batches_from(windows, trainer.params, range(trainer.updates, updates), 0):
        metrics = trainer.update(batches)
    return metrics


def weights(trainer):
    return {name: value.clone() for name, value in trainer.policy.state_dict().items()}


def test_an_update_is_adamw_on_lerobots_loss(windows):
    ours = trainer()
    reference = copy.deepcopy(ours.policy)
    (batches,) = batches_from(windows, PARAMS, range(1), 0)
    metrics = ours.update(batches)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3 * 0.5, weight_decay=1e-4)
    loss, _ = reference.forward(ours.trainee.preprocess(dict(batches[0])))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
    optimizer.step()
    assert metrics["loss"] == pytest.approx(float(loss))
    assert metrics["grad_norm"] == pytest.approx(float(norm))
    assert metrics["learning_rate"] == pytest.approx(5e-4)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(ours.policy.state_dict()[name], value)


def test_micro_batches_with_unequal_padding_are_one_batch(windows):
    whole, parts = trainer(), trainer(dataclasses.replace(PARAMS, accumulation=4))
    for _ in range(3):  # not weights: AdamW makes steps of the rounding in gradients that are zero
        one, four = run(whole, windows, whole.updates + 1), run(parts, windows, parts.updates + 1)
        assert one["loss"] == pytest.approx(four["loss"], rel=1e-4)
        assert one["grad_norm"] == pytest.approx(four["grad_norm"], rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "front", "wrist", "said"),
    [
        (
            {},
            (96, 59),
            (96, 59),
            r"images of \(96, 59\) pixels, smaller than crop_shape=\(60, 60\)",
        ),
        ({"crop_shape": None}, (64, 62), (64, 62), None),  # the network is of the same size
        (
            {"crop_shape": None},
            (64, 65),
            (64, 65),
            r"resizes \(crop_shape, .* takes \(64, 64\): rec",
        ),
        ({"crop_shape": None, "resize_shape": (60, 60)}, (9, 9), (9, 8), "images of several sizes"),
    ],
)
def test_images_that_a_diffusion_cannot_be_given_are_refused(
    settings, front, wrist, said, tmp_path
):
    from tiny_policies import FRONT, WRIST, make_config

    make_config("diffusion", "", **settings).save_pretrained(tmp_path)
    checkpoint = PolicyCheckpoint(tmp_path, {"type": "diffusion"}, (), (), ())
    needed = Needed({FRONT: (3, 64, 64), WRIST: (3, 64, 64)}, {}, 7, None, ())
    seen = SimpleNamespace(root="seen", shape={FRONT: (*front, 3), WRIST: (*wrist, 3)}.get)
    with nullcontext() if said is None else pytest.raises(ConfigError, match=said):
        check_sizes(checkpoint, needed, seen)


@pytest.mark.parametrize("masked", [True, False])
def test_micro_batches_of_a_diffusion_are_one_batch(masked, tmp_path, monkeypatch):
    from lerobot.policies.diffusion import modeling_diffusion
    from tiny_policies import save_policy

    drawn = SimpleNamespace(**vars(torch))  # each window has the same noise, whoever draws it
    drawn.randn = lambda *shape, **_: torch.zeros(*shape)
    drawn.randint = lambda low, high, size, **_: torch.full(size, 3)
    monkeypatch.setattr(modeling_diffusion, "torch", drawn)
    folder, found = save_policy("diffusion", tmp_path, do_mask_loss_for_padding=masked), []
    for parts in (1, 2):
        with tiny_trainer(folder, batch_size=4, accumulation=parts) as ours:
            batch = random_batch(ours.trainee.needed, 4)
            batch["action_is_pad"][2:, 1:] = True  # the second half is at an episode's end
            ours.policy.eval()  # which crops the middle
            halves = [{k: v[2 * n : 2 * n + 2] for k, v in batch.items()} for n in range(2)]
            metrics = ours.update([batch] if parts == 1 else halves)
            found.append([metrics["loss"], metrics["grad_norm"]])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_a_restart_repeats_the_rest_bit_for_bit(windows, tmp_path):
    straight, first = trainer(), trainer()
    run(straight, windows, 6)
    run(first, windows, 3)
    first.components().write(tmp_path)
    second = trainer()
    second.load(tmp_path)
    assert second.updates == 3
    run(second, windows, 6)
    for one, other in ((straight.policy, second.policy), (straight.average, second.average)):
        mine, theirs = one.state_dict(), other.state_dict()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_components_are_of_the_moment_when_they_were_gathered(windows, tmp_path):
    ours = trainer()
    run(ours, windows, 1)
    components = ours.components()
    components.write(tmp_path / "at once")
    run(ours, windows, 3)
    components.write(tmp_path / "later")
    for file in (POLICY, AVERAGE, OPTIMIZER, STATE):
        one, other = (tmp_path / name / file for name in ("at once", "later"))
        assert one.read_bytes() == other.read_bytes()


def test_components_of_another_policy_are_refused(windows, tmp_path):
    ours = trainer()
    run(ours, windows, 1)
    ours.components().write(tmp_path)
    (tmp_path / "policy.safetensors").unlink()
    with pytest.raises(CheckpointError, match="does not fit this policy"):
        trainer().load(tmp_path)


def test_frozen_parameters_stay(windows):
    frozen = trainer(dataclasses.replace(PARAMS, freeze=["model.encoder"]))
    before = weights(frozen)
    run(frozen, windows, 2)
    changed = {name for name, value in weights(frozen).items() if not value.equal(before[name])}
    assert changed
    assert not any(name.startswith("model.encoder") for name in changed)
    with pytest.raises(ConfigError, match="no parameter's name begins with 'encoder'"):
        trainer(dataclasses.replace(PARAMS, freeze=["encoder"]))


def test_the_average_of_a_bfloat16_policy_learns():
    """A step of .01 on 1 is two roundings of bfloat16, and a share of .001 of it is none."""
    policy = torch.nn.Linear(2, 1).bfloat16()
    torch.nn.init.constant_(policy.weight, 1.0)
    average = MovingAverage(policy, 0.999)
    average.update_parameters(policy)
    torch.nn.init.constant_(policy.weight, 1.0625)
    for _ in range(12_000):
        average.update_parameters(policy)
    assert average.module.weight.dtype == torch.float32
    assert average.module.weight.tolist() == [[pytest.approx(1.0625, abs=1e-3)] * 2]


def test_weights_that_are_bfloat16_are_warned_of():
    policy = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Linear(1, 1))
    assert rounding_warning(policy) is None
    policy[0].bfloat16()
    assert rounding_warning(policy).startswith("4 of 6 trained weights are bfloat16")
    policy[0].requires_grad_(False)
    assert rounding_warning(policy) is None
    ulp = torch.tensor([1.0, 1.9921875]).bfloat16()  # the ends of a binade
    assert torch.equal(ulp * (1 - 1 / 513), ulp)


def test_readers_outlive_a_job_s_signal_and_end_with_a_run_that_fails():
    """SIGTERM to all processes of a job is for who reads what they read; after an error, whose
    traceback keeps them, multiprocessing's own at the exit is not heard either."""
    script = """
import multiprocessing, os, signal
import numpy as np
from pld_ray.config.finetune import FinetuneParams
from pld_ray.sharded.trainer import batches_from
class Windows:
    def rows_of_update(self, update, size): return np.arange(size)
    def batch(self, rows): return rows
def run():
    batches = batches_from(Windows(), FinetuneParams(batch_size=8), range(99), 2)
    killed = [os.kill(p.pid, signal.SIGTERM) for p in multiprocessing.active_children()]
    others = batches_from(Windows(), FinetuneParams(batch_size=8), range(99), 2)
    print(len(killed), len(list(batches)), flush=True)
    next(others)
    raise KeyError(7)
run()
"""
    # of its own, as one with threads had better not be forked
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=100)
    assert ended.returncode == 1
    assert ended.stdout == b"2 99\n", ended.stderr
    assert b"KeyError: 7" in ended.stderr
    assert ended.stderr.count(b"Traceback") == 1, ended.stderr


def test_weights_of_several_precisions_are_not_sharded_together():
    policy = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Linear(1, 1))
    check_one_precision(policy, ())
    policy[0].bfloat16()
    with pytest.raises(RunError, match=r"\(bfloat16, float32\).*--policy.dtype=float32"):
        check_one_precision(policy, ())
    check_one_precision(policy, set(policy[0].parameters()))  # these stay whole
    policy[0].requires_grad_(False)
    check_one_precision(policy, ())


def test_a_preset_that_does_not_clip_learns(windows):
    """0 is LeRobot's word for it; as a greatest norm it would be no step at all."""
    policy = trainer().policy
    preset = dataclasses.replace(policy.config.get_optimizer_preset(), grad_clip_norm=0.0)
    policy.config.get_optimizer_preset = lambda: preset
    assert make_optimizer(policy, FinetuneParams())[1] == math.inf


def test_a_folder_is_in_the_precision_of_its_policy(tmp_path):
    ours = trainer()
    stored = dict.fromkeys(ours.trainee.stored, torch.bfloat16)
    trainee = dataclasses.replace(ours.trainee, stored=stored)
    write_policy_folder(trainee, ours.average_state(), tmp_path / "policy", {})
    written = load_file(tmp_path / "policy" / "model.safetensors")
    assert {value.dtype for value in written.values()} == {torch.bfloat16}


def test_a_policy_that_was_stored_in_bfloat16_is_not_rounded_when_it_is_loaded(tmp_path):
    folder = shutil.copytree(EMBEDDED_ACT, tmp_path / "base", copy_function=shutil.copyfile)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, "dtype": "bfloat16"}))
    ours = trainer()
    checkpoint = dataclasses.replace(ours.trainee.checkpoint, directory=folder)
    ours.policy.config.dtype = "float32"  # as pi0 and pi05 have it
    trainee = dataclasses.replace(ours.trainee, checkpoint=checkpoint)
    write_policy_folder(trainee, ours.average_state(), tmp_path / "policy", {})
    written = json.loads((tmp_path / "policy" / "config.json").read_text())
    assert written == {**content, "dtype": "float32"}


def test_a_frame_that_is_not_finite_stops_before_it_spoils_the_weights(windows):
    ours = trainer()
    run(ours, windows, 1)
    before = weights(ours)
    (batches,) = batches_from(windows, PARAMS, range(1, 2), 0)
    broken = {**batches[0], "observation.state": batches[0]["observation.state"].clone()}
    broken["observation.state"][3, 0] = math.nan
    with pytest.raises(NonFiniteTrainingError, match=r"at update 1; observation\.state of a frame"):
        ours.update([broken])
    assert all(value.equal(before[name]) for name, value in weights(ours).items())


def test_an_action_that_is_not_finite_stops_though_its_gradient_is_none(windows):
    ours = trainer()
    before = weights(ours)
    (batches,) = batches_from(windows, PARAMS, range(1), 0)
    broken = {**batches[0], "action": batches[0]["action"].clone()}
    broken["action"][3, 0, 0] = math.nan
    with pytest.raises(NonFiniteTrainingError, match=r"the loss is not .* update 0; action of a f"):
        ours.update([broken])
    assert all(value.equal(before[name]) for name, value in weights(ours).items())
    said = (
        r"validation loss is not .*; action of a frame .* begin a new run in another --output_dir"
    )
    with pytest.raises(NonFiniteTrainingError, match=said):
        ours.validation_loss([batches[0], broken])


def test_weights_that_are_not_finite_stop_a_validation(windows):
    ours = trainer()
    (batches,) = batches_from(windows, PARAMS, range(1), 0)
    with torch.no_grad():
        next(ours.average.module.parameters()).fill_(math.nan)
    said = "the validation loss is not finite .* the data is finite: lower .* begin a new run"
    with pytest.raises(NonFiniteTrainingError, match=said):
        ours.validation_loss(batches)


def test_the_average_by_hand():
    mean, value = torch.tensor([0.0]), torch.tensor([1.0])
    average = moving_average(0.9)
    average([mean], [value], 0)
    assert mean.item() == pytest.approx(0.9)  # d = 1/10
    average([mean], [value], 1)
    assert mean.item() == pytest.approx(1 - 0.1 * 2 / 11)
    mean.fill_(0.0)
    average([mean], [value], 10_000)
    assert mean.item() == pytest.approx(0.1)


def test_the_learning_rate_rises_and_falls():
    params = FinetuneParams(warmup_updates=10, final_learning_rate=0.1)
    assert learning_rate_share(0, 100, params) == pytest.approx(0.1, rel=1e-3)
    assert learning_rate_share(50, 100, params) == pytest.approx(0.55)
    assert learning_rate_share(99, 100, params) == pytest.approx(
        0.1 + 0.9 * (0.5 + 0.5 * math.cos(0.99 * math.pi))
    )


def test_the_folder_is_one_that_lerobot_and_we_load(windows, tmp_path):
    from lerobot.policies.act.modeling_act import ACTPolicy

    ours = trainer()
    write_policy_folder(ours.trainee, ours.average_state(), tmp_path / "same", {"seed": 1})
    assert load_base_policy(tmp_path / "same").fingerprint == load_base_policy().fingerprint
    run(ours, windows, 3)
    write_policy_folder(ours.trainee, ours.average_state(), tmp_path / "p", {"seed": 1})
    policy = load_base_policy(tmp_path / "p")
    assert policy.fingerprint != load_base_policy(EMBEDDED_ACT).fingerprint
    lerobots = ACTPolicy.from_pretrained(tmp_path / "p", strict=True)
    for name, value in ours.average.module.state_dict().items():
        assert torch.equal(lerobots.state_dict()[name], value)


@pytest.mark.parametrize("kind", ["diffusion", "smolvla", "pi05"])
def test_a_stochastic_policy_learns_and_is_loaded_again(kind, tmp_path):
    folder = save_tiny(kind, tmp_path)
    with tiny_trainer(folder) as ours:
        batch = random_batch(ours.trainee.needed, 2)
        losses = [ours.validation_loss([batch]) for _ in range(2)]
        assert losses[0] == losses[1]  # the noise is its own
        assert math.isfinite(ours.update([batch])["loss"])
        ours.components().write(tmp_path / "middle")
        ours.update([batch])
        with tiny_trainer(folder) as again:  # pi05 has weights that its loss does not reach
            again.load(tmp_path / "middle")
            again.update([batch])
            ends = [one.components().tensors for one in (ours, again)]
        for file, tensors in ends[0].items():
            assert tensors.keys() == ends[1][file].keys()
            assert all(value.equal(ends[1][file][name]) for name, value in tensors.items())
        write_policy_folder(ours.trainee, ours.average_state(), tmp_path / "p", {})
        assert load_base_policy(tmp_path / "p", tokenizer_path=tokenizer(folder)).chunk_size
