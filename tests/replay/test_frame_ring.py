"""The ring against a plain list of episodes, whatever is added in whatever order."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from list_model import GAMMA, filled, join, lengths, make_episode, schema

from pld_ray.errors import UserError
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema


@st.composite
def histories(draw):
    """A capacity and a sequence of batches of (length, terminated)."""
    capacity = draw(st.integers(4, 30))
    episode = st.tuples(st.integers(1, capacity - 1), st.booleans())
    return capacity, draw(st.lists(st.lists(episode, min_size=1, max_size=3), max_size=8))


@settings(max_examples=120)
@given(histories(), st.integers(1, 5), st.booleans())
def test_every_transition_equals_the_list_model(history, n_step, extras):
    ring, model = filled(*history, extras=extras)
    expected = list(model.transitions(n_step, GAMMA))
    assert len(ring) == len(expected)
    assert ring.num_rows == sum(len(e["reward"]) for e in model.episodes)
    if not expected:
        return
    batch = ring.gather(ring.start_rows(), n_step, GAMMA).unpack(ring.schema)
    assert batch.keys() == expected[0].keys()
    for name, values in batch.items():
        want = np.array([row[name] for row in expected], dtype=np.float64)
        np.testing.assert_allclose(values.double().numpy(), want, rtol=1e-5, atol=1e-5)


@settings(max_examples=60)
@given(histories(), st.integers(1, 4), st.integers(0, 2**31))
def test_samples_stay_inside_one_episode(history, n_step, seed):
    ring, model = filled(*history)
    if not len(ring):
        return
    ring.generator.manual_seed(seed)
    batch = ring.sample(64, n_step, GAMMA)
    here, there = batch["observation"][:, 0].int(), batch["next_observation"][:, 0].int()
    length_of = {
        int(e["observation.state"][0, 0]) // 1000: len(e["reward"]) - 1 for e in model.episodes
    }
    for a, b in zip(here.tolist(), there.tolist(), strict=True):
        episode, t = divmod(a, 1000)
        assert episode in length_of  # evicted episodes do not come back
        assert t < length_of[episode]  # a final frame is never a start
        assert b == 1000 * episode + min(t + n_step, length_of[episode])


@settings(max_examples=60)
@given(histories(), st.integers(1, 6))
def test_windows_are_masked_at_the_episodes_end(history, h):
    ring, model = filled(*history)
    rows, mask = ring.windows(ring.start_rows(), h)
    ids = ring.column("observation.state", rows)[..., 0]
    expected = [
        [1000 * (int(e["observation.state"][0, 0]) // 1000) + t + k for k in range(h)]
        for e in model.episodes
        for t in range(len(e["reward"]) - 1)
    ]
    valid = [
        [t + k < len(e["reward"]) - 1 for k in range(h)]
        for e in model.episodes
        for t in range(len(e["reward"]) - 1)
    ]
    assert mask.tolist() == valid
    assert ids[mask].tolist() == torch.tensor(expected).view(-1, h)[mask].tolist()


def test_sampling_is_uniform_over_transitions():
    ring, _ = filled(40, [[(9, True), (3, False)], [(20, False), (1, True)]])
    drawn = ring.sample(66_000)["observation"][:, 0]
    _, counts = drawn.unique(return_counts=True)
    assert len(counts) == len(ring) == 33
    assert counts.min() > 1_750  # 2000 expected, 45 standard deviation
    assert counts.max() < 2_250


def test_truncation_bootstraps_from_the_final_frame_and_termination_does_not():
    for terminated, discount in ((True, 0.0), (False, 0.9)):
        ring, _ = filled(10, [[(2, terminated)]])
        batch = ring.gather(ring.start_rows()[-1:], 1, 0.9).unpack(ring.schema)
        assert batch["next_observation"][0, 0] == 2.0
        assert batch["discount"].item() == pytest.approx(discount)


def test_images_follow_their_rows_through_wraps_and_evictions():
    ring = FrameRing(schema(images=True), 23, seed=0)
    for number in range(12):
        episode = make_episode(number, 3 + number % 4, True, images=True)
        ring.add_episodes(episode, lengths([episode]), GAMMA)
        batch = ring.sample(64, 2, GAMMA)
        for prefix, image_prefix in (("observation", ""), ("next_observation", "next.")):
            image = batch[f"{image_prefix}observation.images.image"]
            assert image.dtype == torch.uint8
            ids = batch[prefix][:, 0].long()
            assert torch.equal(image[:, 0, 0, 0].long(), ids // 1000)
            assert torch.equal(image[:, 0, 0, 1].long(), ids % 1000)


def test_ten_thousand_image_transitions_cost_what_their_frames_cost():
    scalar, flag = ColumnSpec(()), ColumnSpec((), "bool")
    image, action = ColumnSpec((128, 128, 3), "uint8"), ColumnSpec((7,))
    columns = {
        "observation.state": ColumnSpec((8,)),
        "observation.images.image": image,
        "observation.images.image2": image,
        "base_action": action,
        "action": action,
        "reward": scalar,
        "terminated": flag,
        "truncated": flag,
        "residual_scale": scalar,
        "intervened": flag,
    }
    ring = FrameRing(ReplaySchema(columns, ["observation.state"]), 10_050)
    raw_frames = 10_000 * 2 * 128 * 128 * 3
    assert ring.nbytes <= 1.05 * raw_frames


def test_two_rings_with_one_seed_sample_alike_and_the_global_generator_is_left_alone():
    batches = [[(9, True), (5, False)]]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, other = filled(30, batches)[0], filled(30, batches)[0]
    for _ in range(3):
        assert torch.equal(one.sample(32)["observation"], other.sample(32)["observation"])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_columns_of_every_kind_are_read_without_the_rest_of_their_rows(shape):
    ring = FrameRing(schema(images=True, features="e", extras=True), 23, seed=0)
    kinds = {"images": True, "features": True, "extras": True}
    episodes = [make_episode(number, 4, True, **kinds) for number in range(5)]
    for episode in episodes:  # wraps around; the last four stay
        ring.add_episodes(episode, [4], GAMMA)
    starts = ring.start_rows()
    order = torch.randint(len(starts), shape, generator=torch.Generator().manual_seed(1))
    transitions = {
        name: np.concatenate([episode[name][:-1] for episode in episodes[1:]])
        for name in episodes[0]
    }
    for name, values in transitions.items():
        read = ring.column(name, starts[order])
        expected = torch.as_tensor(values)[order]
        assert torch.equal(read, expected.to(read.dtype)), name
        assert read.untyped_storage().nbytes() == read.numel() * read.element_size()
    seen = ring.observations()
    assert torch.equal(seen[:, 0], torch.as_tensor(transitions["observation.state"])[:, 0])
    assert seen.untyped_storage().nbytes() == seen.numel() * seen.element_size()


# --- bad input -----------------------------------------------------------------------------------


def test_an_episode_longer_than_the_ring_is_refused_and_nothing_is_stored():
    ring = FrameRing(schema(), 10)
    episodes = [make_episode(0, 3, True), make_episode(1, 10, True)]
    with pytest.raises(UserError, match=r"episode 1 needs 11 rows but the capacity is 10"):
        ring.add_episodes(join(episodes), lengths(episodes), GAMMA)
    assert len(ring) == 0


def test_an_empty_ring_says_so():
    with pytest.raises(ValueError, match="no episode has been stored"):
        FrameRing(schema(), 10).sample(4)


def test_malformed_columns_are_named():
    ring, episode = FrameRing(schema(), 10), make_episode(0, 3, True)
    with pytest.raises(ValueError, match="'reward' is missing"):
        ring.add_episodes({k: v for k, v in episode.items() if k != "reward"}, [3], GAMMA)
    with pytest.raises(ValueError, match=r"'action' has shape \(3, 2\), need \(4, 2\)"):
        ring.add_episodes({**episode, "action": episode["action"][:3]}, [3], GAMMA)
    with pytest.raises(ValueError, match="episode 0 has 0 transitions"):
        ring.add_episodes(episode, [0], GAMMA)
    early = {**episode, "terminated": np.array([True, False, True, False])}
    with pytest.raises(ValueError, match="`terminated` before its last transition"):
        ring.add_episodes(early, [3], GAMMA)


def test_a_schema_without_a_required_column_is_refused():
    with pytest.raises(ValueError, match="'action' is missing"):
        ReplaySchema({"x": ColumnSpec((1,)), "base_action": ColumnSpec((1,))}, ["x"])
    good = schema().columns
    with pytest.raises(ValueError, match="dtype int64"):
        ReplaySchema({**good, "reward": ColumnSpec((), "int64")}, ["observation.state"])
    with pytest.raises(ValueError, match="'discount' has the name of something"):
        ReplaySchema({**good, "discount": ColumnSpec(())}, ["observation.state"])
    with pytest.raises(ValueError, match=r"'discrete_penalty' has shape \(2,\), need a scalar"):
        ReplaySchema({**good, "discrete_penalty": ColumnSpec((2,))}, ["observation.state"])


# --- further columns -----------------------------------------------------------------------------


def test_further_columns_keep_their_dtype_and_the_penalty_is_summed_as_the_reward_is():
    ring, _ = filled(30, [[(4, False)]], extras=True)
    episode = make_episode(0, 4, False, extras=True)
    batch = ring.gather(ring.start_rows(), 3, 0.5).unpack(ring.schema)
    assert batch["probing"].dtype == torch.bool
    assert batch["discrete_action"].tolist() == episode["discrete_action"][:4].tolist()
    p = episode["discrete_penalty"].tolist()
    want = [p[0] + p[1] / 2 + p[2] / 4, p[1] + p[2] / 2 + p[3] / 4, p[2] + p[3] / 2, p[3]]
    assert batch["discrete_penalty"].tolist() == pytest.approx(want)


# --- memory --------------------------------------------------------------------------------------


FILLING = """
import os, pathlib, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from list_model import GAMMA, schema
from pld_ray.replay import ColumnSpec, FrameRing, ReplaySchema

def resident_bytes():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")

image, features = ColumnSpec((64, 64, 3), "uint8"), ColumnSpec((128, 4, 4), "float16")
columns = schema().columns | {f"observation.images.{n}": image for n in "ab"}
columns |= {f"observation.features.{n}": features for n in "ab"}
large = ReplaySchema(columns, schema().observation_keys, "encoder")
capacity = 8000
frames = {name: np.ones((100, *spec.shape), spec.dtype) for name, spec in columns.items()}
frames["terminated"][:] = False
before = resident_bytes()
ring = FrameRing(large, capacity)
assert ring.nbytes == FrameRing.predict_nbytes(large, capacity)
print(FrameRing.predict_nbytes(large, capacity))
print(resident_bytes() - before)
for number in range(2 * capacity // 100):
    ring.add_episodes(frames, [99], GAMMA)
    if number == capacity // 200 - 1:
        print(resident_bytes() - before)
print(resident_bytes() - before)
"""


def test_a_filling_ring_takes_memory_as_it_fills_and_in_the_end_what_was_predicted():
    """In a process of its own, where no memory that earlier tests freed is used again."""
    here = str(pathlib.Path(__file__).parent)
    command = [sys.executable, "-c", FILLING, here]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    predicted, empty, half, full = (int(line) for line in output.split())
    # by hand: 3 + 2 * 2 + 5 scalars and 2 computed ones of float32, two int64 and a bool, images,
    # features; 263 MB
    assert predicted == 8000 * (4 * 14 + 2 * 8 + 1 + 2 * 64 * 64 * 3 + 2 * 128 * 4 * 4 * 2)
    assert empty < 0.05 * predicted
    assert 0.4 * predicted < half < 0.6 * predicted
    assert 0.9 * predicted < full < 1.1 * predicted
