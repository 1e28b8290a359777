"""The random shift beside padding and slicing written out."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pld_ray.networks.augmentation import random_shift, shift_by_copies, shift_by_index

PATHS = pytest.mark.parametrize("path", [shift_by_copies, shift_by_index])


def pixels(*shape, seed=0):
    """Random images; equal pixels are rare enough that a wrong offset shows."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def padded_and_cropped(images, shifts, pad):
    height, width = images.shape[1:3]
    padding = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    padded = np.pad(images.numpy(), padding, mode="edge")
    crops = [
        image[pad + dy : pad + dy + height, pad + dx : pad + dx + width]
        for image, (dy, dx) in zip(padded, shifts.tolist(), strict=True)
    ]
    return torch.from_numpy(np.stack(crops))


@PATHS
def test_every_shift_equals_padding_and_cropping(path):
    pad = 3
    every = [(dy, dx) for dy in range(-pad, pad + 1) for dx in range(-pad, pad + 1)]
    shifts = torch.tensor(every)
    images = pixels(len(shifts), 5, 7, 3)
    assert torch.equal(path(images, shifts), padded_and_cropped(images, shifts, pad))


@settings(max_examples=80)
@given(
    shape=st.tuples(*(st.integers(1, n) for n in (4, 9, 9, 4))),
    pad=st.integers(1, 12),
    seed=st.integers(0, 2**31),
)
def test_random_shift_equals_padding_and_cropping_at_its_own_offsets(shape, pad, seed):
    images = pixels(*shape, seed=seed)
    before = images.clone()
    shifted = random_shift(images, pad, torch.Generator().manual_seed(seed))
    shifts = torch.randint(
        -pad, pad + 1, (shape[0], 2), generator=torch.Generator().manual_seed(seed)
    )
    assert torch.equal(shifted, padded_and_cropped(images, shifts, pad))
    assert torch.equal(images, before)


def test_images_that_are_views_are_shifted_alike():
    images = pixels(6, 8, 10, 3).permute(0, 2, 1, 3)
    shifts = torch.tensor([[1, -2]] * 6)
    assert torch.equal(shift_by_copies(images, shifts), shift_by_index(images, shifts))
    assert torch.equal(shift_by_copies(images, shifts), padded_and_cropped(images, shifts, 2))


def test_both_offsets_are_uniform_independent_and_cover_their_range():
    pad, batch = 2, 20_000
    # the value of a pixel is its place, so the middle pixel tells the shift
    image = torch.arange(49, dtype=torch.uint8).view(1, 7, 7, 1).expand(batch, 7, 7, 1)
    middle = random_shift(image, pad, torch.Generator().manual_seed(0))[:, 3, 3, 0].long()
    counts = torch.zeros(5, 5)
    counts.index_put_((middle // 7 - 1, middle % 7 - 1), torch.ones(batch), accumulate=True)
    expected = batch / 25  # 800, standard deviation 28
    assert ((counts - expected).abs() < 140).all()


def test_no_padding_is_the_identity():
    images = pixels(3, 4, 4, 3)
    assert torch.equal(random_shift(images, 0, torch.Generator()), images)


def test_one_seed_gives_one_result_and_the_global_generator_is_left_alone():
    images = pixels(5, 16, 16, 3)
    before = torch.get_rng_state()
    first, again, other = (
        random_shift(images, 4, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("images", "pad", "message"),
    [
        (torch.zeros(2, 4, 4, 3), 1, r"torch\.float32, need torch\.uint8"),
        (torch.zeros(4, 4, 3, dtype=torch.uint8), 1, r"shape \(4, 4, 3\), need \[B, H, W, C\]"),
        (torch.zeros(2, 0, 4, 3, dtype=torch.uint8), 1, r"shape \(2, 0, 4, 3\)"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), -1, "pad=-1 must be >= 0"),
    ],
)
def test_bad_input_is_named(images, pad, message):
    with pytest.raises(ValueError, match=message):
        random_shift(images, pad, torch.Generator())
