"""Features of frozen encoders, and the check of camera spaces."""

import numpy as np
import pytest
import torch

from pld_ray.networks.encoders import (
    FrozenFeatures,
    build_backbone,
    check_image_spaces,
    feature_key,
)

FLOAT16 = {"rtol": 2**-10, "atol": 1e-4}


def images(rows, size=64):
    return np.random.default_rng(0).integers(0, 256, (rows, size, size, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def frozen():
    return FrozenFeatures(build_backbone("resnet10", None, 32, seed=0))


def test_features_are_the_backbones_in_half_precision(frozen):
    frames = images(5)
    features = frozen.compute(frames)
    assert features.dtype == torch.float16
    assert features.device.type == "cpu"
    assert features.shape == (5, *frozen.shape(64, 64)) == (5, 512, 2, 2)
    assert not features.requires_grad
    assert not any(p.requires_grad for p in frozen.backbone.parameters())
    expected = frozen.backbone(torch.from_numpy(frames))
    torch.testing.assert_close(features.float(), expected, **FLOAT16)
    assert expected.std() > 0.1
    assert frozen.fingerprint == frozen.backbone.fingerprint()


def test_the_grouping_of_rows_does_not_matter(frozen):
    frames = images(7)
    together = frozen.compute(torch.from_numpy(frames), rows_at_once=7).float()
    for rows in (1, 3, 64):
        torch.testing.assert_close(frozen.compute(frames, rows).float(), together, **FLOAT16)
    torch.testing.assert_close(frozen.compute(frames[2:3])[0].float(), together[2], **FLOAT16)
    assert frozen.compute(frames[:0]).shape == (0, 512, 2, 2)


def test_arrays_from_shared_memory_are_read(frozen):
    frames = images(4)
    frames.flags.writeable = False
    assert torch.equal(frozen.compute(frames), frozen.compute(frames.copy()))
    turned = frames[:, ::-1, ::-1]  # negative strides, as LIBERO's images before they are copied
    assert torch.equal(frozen.compute(turned), frozen.compute(np.ascontiguousarray(turned)))
    with pytest.raises(ValueError, match=r"float32.*need torch.uint8"):
        frozen.compute(frames.astype(np.float32))


def test_features_beyond_half_precision_are_refused():
    """Without trained statistics, BatchNorm does not hold the scale: 1e-8 after this network."""
    vanishing = build_backbone("torchvision:mobilenet_v3_small", None, 32, seed=0)
    with pytest.raises(ValueError, match=r"mobilenet_v3_small.*outside of float16.*weights"):
        FrozenFeatures(vanishing)
    backbone = build_backbone("cnn", None, 8, seed=0)
    growing = FrozenFeatures(backbone)
    growing.compute(images(1))
    with torch.no_grad():
        backbone.layers[6].weight.mul_(1e8)
    with pytest.raises(ValueError, match="beyond the range of float16"):
        growing.compute(images(1))


def test_columns_are_named_after_cameras():
    assert feature_key("observation.images.image") == "observation.features.image"
    assert feature_key("observation.images.wrist.left") == "observation.features.wrist.left"
    with pytest.raises(ValueError, match=r"'observation.state' is no camera"):
        feature_key("observation.state")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (((64, 96, 3), "uint8"), "different sizes .a: 64 x 64, b: 64 x 96.: render all at one"),
        (((64, 64, 1), "uint8"), r"'b'.*\[64, 64, 1\] .1 channels.*need \[height, width, 3\]"),
        (((64, 64), "uint8"), r"'b'.*1 channels"),
        (((64, 64, 4), "uint8"), r"'b'.*4 channels.*drop an alpha"),
        (((64, 64, 3), "float32"), r"'b' gives float32 images: need uint8"),
    ],
)
def test_cameras_that_cannot_be_read_are_refused(second, message):
    check_image_spaces({"a": ((64, 64, 3), "uint8"), "b": ((64, 64, 3), "uint8")})
    with pytest.raises(ValueError, match=message):
        check_image_spaces({"a": ((64, 64, 3), "uint8"), "b": second})


def test_cameras_too_small_for_the_encoder_are_refused():
    backbone = build_backbone("cnn", None, 8, seed=0)
    check_image_spaces({}, backbone)
    check_image_spaces({"a": ((39, 40, 3), "uint8")}, backbone)
    with pytest.raises(ValueError, match=r"'a'.*32 x 32 leave no feature map; it needs 39 x 39"):
        check_image_spaces({"a": ((32, 32, 3), "uint8")}, backbone)
