"""Vision encoders: layout, names, shapes, fingerprints, and refusal of what cannot work."""

import copy
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchvision import models

from pld_ray.networks.encoders import Backbone, ResNet10, SmallCNN, build_backbone
from pld_ray.networks.encoders.backbones import BeforeHead
from pld_ray.networks.encoders.convolutions import pad_same


def images(rows=2, size=64, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, size, size, 3), dtype=torch.uint8, generator=g)


@pytest.fixture
def resnet10():
    """Random everywhere: fresh norms would be the identity, and hide one that is left out."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ResNet10()
        with torch.no_grad():
            for norm in (m for m in net.modules() if isinstance(m, nn.GroupNorm)):
                norm.weight.uniform_(0.5, 1.5)
                norm.bias.uniform_(-0.5, 0.5)
    return net


def test_resnet10_has_serls_layout(resnet10):
    """Parameters by hand from the layout of serl_launcher/vision/resnet_v1.py (resnetv1-10):

    stem 7*7*3*64 + 2*64                                         = 9,536
    64 -> 64     2 * 9*64*64 + 2 * 2*64                          = 73,984
    64 -> 128    9*64*128 + 9*128*128 + 64*128 + 3 * 2*128       = 230,144
    128 -> 256   9*128*256 + 9*256*256 + 128*256 + 3 * 2*256     = 919,040
    256 -> 512   9*256*512 + 9*512*512 + 256*512 + 3 * 2*512     = 3,673,088
    """
    assert sum(p.numel() for p in resnet10.parameters()) == 4_905_792
    assert [sum(p.numel() for p in b.parameters()) for b in resnet10.blocks] == [
        73_984,
        230_144,
        919_040,
        3_673_088,
    ]
    norms = [m for m in resnet10.modules() if isinstance(m, nn.GroupNorm)]
    assert len(norms) == 1 + 4 * 2 + 3
    assert all(n.num_groups == 4 and n.eps == 1e-5 for n in norms)
    assert not any("Batch" in type(m).__name__ for m in resnet10.modules())
    assert all(m.bias is None for m in resnet10.modules() if isinstance(m, nn.Conv2d))


@pytest.mark.parametrize(
    ("size", "side"),
    [(128, 4), (64, 2), (84, 3), (32, 1), (5, 1)],  # 84: 42, 21, 21, 11, 6, 3
)
def test_resnet10_divides_the_image_by_32(resnet10, size, side):
    assert resnet10(torch.zeros(1, 3, size, size)).shape == (1, 512, side, side)


@pytest.mark.parametrize("size", [6, 7])
def test_windows_lie_where_xla_puts_them(size):
    """SAME, stride 2: window o covers 2o .. 2o+2 of an even size, 2o-1 .. 2o+1 of an odd one."""
    x = torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(0))
    kernel = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(1))
    first = 0 if size % 2 == 0 else -1
    outputs = (size + 1) // 2
    expected = torch.zeros(outputs, outputs)
    for oy in range(outputs):
        for ox in range(outputs):
            for ky in range(3):
                for kx in range(3):
                    y, z = 2 * oy + first + ky, 2 * ox + first + kx
                    if 0 <= y < size and 0 <= z < size:
                        expected[oy, ox] += x[0, 0, y, z] * kernel[0, 0, ky, kx]
    torch.testing.assert_close(F.conv2d(pad_same(x), kernel, stride=2)[0, 0], expected)


def test_resnet10_equals_functional_arithmetic(resnet10):
    """Everything from the state_dict alone, in double precision, the norms written out."""
    state = {k: v.double() for k, v in resnet10.state_dict().items()}
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def norm(y, name):
        groups = y.reshape(len(y), 4, -1)
        groups = (groups - groups.mean(2, keepdim=True)) / (
            groups.var(2, keepdim=True, correction=0) + 1e-5
        ).sqrt()
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        return groups.reshape(y.shape) * weight[:, None, None] + bias[:, None, None]

    def after(y):  # every map on the way has an even size
        return F.pad(y, (0, 1, 0, 1))

    y = F.conv2d(x.double(), state["conv_init.weight"], stride=2, padding=3)
    y = F.max_pool2d(F.pad(F.relu(norm(y, "norm_init")), (0, 1, 0, 1), value=-torch.inf), 3, 2)
    for n in range(4):
        block = f"blocks.{n}"
        conv1, conv2 = state[f"{block}.conv1.weight"], state[f"{block}.conv2.weight"]
        z = F.conv2d(y, conv1, padding=1) if n == 0 else F.conv2d(after(y), conv1, stride=2)
        z = F.relu(norm(z, f"{block}.norm1"))
        z = norm(F.conv2d(z, conv2, padding=1), f"{block}.norm2")
        if n > 0:
            y = norm(
                F.conv2d(y, state[f"{block}.conv_proj.weight"], stride=2), f"{block}.norm_proj"
            )
        y = F.relu(y + z)
    torch.testing.assert_close(resnet10(x).double(), y, rtol=1e-3, atol=1e-3)


def test_the_small_cnn_is_hil_serls():
    """LeRobot's DefaultImageEncoder: kernels 7, 5, 3, 3, stride 2, no padding; with 32 channels

    7*7*3*32 + 5*5*32*32 + 2 * 3*3*32*32 + 4*32 = 4,704 + 25,600 + 18,432 + 128.
    """
    net = SmallCNN(32)
    assert sum(p.numel() for p in net.parameters()) == 48_864
    x = torch.randn(2, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    y = x
    for layer in (m for m in net if isinstance(m, nn.Conv2d)):
        y = F.relu(F.conv2d(y, layer.weight, layer.bias, stride=2))
    torch.testing.assert_close(net(x), y)


@pytest.mark.parametrize(
    ("name", "size", "shape"),
    [
        # (128-7)//2+1 = 61, (61-5)//2+1 = 29, (29-3)//2+1 = 14, (14-3)//2+1 = 6
        ("cnn", 128, (32, 6, 6)),
        ("resnet10", 128, (512, 4, 4)),
        ("torchvision:mobilenet_v3_small", 64, (576, 2, 2)),
        ("torchvision:convnext_tiny", 64, (768, 2, 2)),
    ],
)
def test_feature_maps_have_the_announced_shape(name, size, shape):
    backbone = build_backbone(name, None, 32, seed=0)
    assert backbone.feature_shape(size, size) == shape
    features = backbone(images(2, size))
    assert features.shape == (2, *shape)
    assert features.dtype == torch.float32
    assert features.isfinite().all()


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("resnet18", lambda m, y: m.fc(m.avgpool(y).flatten(1))),
        ("densenet121", lambda m, y: m.classifier(y.mean((2, 3)))),
        ("swin_t", lambda m, y: m.head(y.mean((2, 3)))),
        ("shufflenet_v2_x0_5", lambda m, y: m.fc(y.mean((2, 3)))),
    ],
)
def test_torchvision_maps_are_what_the_head_gets(name, rest):
    """The network's own head on our map gives the network's own answer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.get_model(name, weights=None).eval()
        x = torch.randn(2, 3, 64, 64)
        for m in model.modules():  # else features vanish beside the head's bias
            if isinstance(m, nn.BatchNorm2d):
                m.momentum = None
        with torch.no_grad():
            model.train()(torch.randn(4, 3, 64, 64))
            model.eval()
            features = BeforeHead(model).eval()(x)
            assert features.ndim == 4
            assert features.std() > 0.01
            torch.testing.assert_close(rest(model, features), model(x), rtol=1e-4, atol=1e-4)


def test_batch_statistics_are_never_used():
    backbone = build_backbone("torchvision:resnet18", None, 32, seed=0)
    before = backbone.fingerprint()
    assert any(isinstance(m, nn.BatchNorm2d) for m in backbone.modules())
    nn.Sequential(backbone).train()
    # in double precision: a product's last bits depend on its height, and on the machine
    picture = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)).double()
    layers = copy.deepcopy(backbone.layers).double()
    torch.testing.assert_close(layers(picture)[:1], layers(picture[:1]), rtol=1e-10, atol=1e-12)
    assert not any(m.training for m in backbone.modules())
    assert backbone.fingerprint() == before  # running statistics are buffers


def test_a_copy_of_a_torchvision_encoder_is_independent():
    backbone = build_backbone("torchvision:resnet18", None, 32, seed=0)
    twin = copy.deepcopy(backbone)
    assert not any(m.training for m in twin.modules())
    assert torch.equal(twin(images()), backbone(images()))
    assert twin.fingerprint() == backbone.fingerprint()
    with torch.no_grad():
        next(twin.parameters()).add_(1.0)
    assert not torch.equal(twin(images()), backbone(images()))


def test_images_are_scaled_inside():
    """(0, 127, 255) by hand: red (0 - 0.485) / 0.229, green (127/255 - 0.456) / 0.224, ..."""
    backbone = Backbone("identity", nn.Identity())
    picture = torch.tensor([0, 127, 255], dtype=torch.uint8).expand(1, 2, 5, 3)
    x = backbone(picture)
    assert x.shape == (1, 3, 2, 5)
    expected = torch.tensor([-2.117904, 0.187675, 2.640000]).view(1, 3, 1, 1).expand_as(x)
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-5)
    for wrong in (picture.float(), picture[0], picture.permute(0, 3, 1, 2)):
        with pytest.raises(ValueError, match=r"need torch.uint8 \[B, H, W, 3\]"):
            backbone(wrong)


@pytest.mark.parametrize("name", ["resnet10", "torchvision:mobilenet_v3_small"])
def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone(name):
    before = torch.get_rng_state()
    one, other = (build_backbone(name, None, 32, seed=4) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert one.fingerprint() == other.fingerprint()
    assert len(one.fingerprint()) == 16
    assert one.fingerprint() != build_backbone(name, None, 32, seed=5).fingerprint()
    with torch.no_grad():  # the last bit of one weight
        weight = next(other.parameters()).view(-1)
        weight[0] = torch.nextafter(weight[0], torch.tensor(9.0))
    assert one.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet11", "must be cnn, resnet10"),
        ("none", "must be cnn, resnet10"),
        ("torchvision:resnet19", "torchvision has no 'resnet19'; for example .*resnet18"),
        ("torchvision:vit_b_32", "no feature map"),
    ],
)
def test_unknown_encoders_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        build_backbone(name, None, 32, seed=0)


def test_timm_is_optional_and_downloads_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    with pytest.raises(ValueError, match="pip install timm"):
        build_backbone("timm:resnet18", None, 32, seed=0)
    asked = {}

    def create_model(name, **options):
        asked[name] = options
        return SmallCNN(4) if name == "conv" else nn.Flatten()

    timm = SimpleNamespace(is_model=lambda name: ":" not in name, create_model=create_model)
    monkeypatch.setitem(sys.modules, "timm", timm)
    assert build_backbone("timm:conv", None, 32, seed=0).feature_shape(128, 128) == (4, 6, 6)
    assert asked == {"conv": {"pretrained": False, "num_classes": 0, "global_pool": ""}}
    with pytest.raises(ValueError, match="no feature map"):
        build_backbone("timm:flat", None, 32, seed=0)
    with pytest.raises(ValueError, match="timm has no 'hf-hub:a/b'"):
        build_backbone("timm:hf-hub:a/b", None, 32, seed=0)


def test_images_that_leave_no_feature_map_are_refused(capfd):
    """39 -> 17 -> 7 -> 3 -> 1 through kernels 7, 5, 3, 3; of 38 nothing is left."""
    cnn = build_backbone("cnn", None, 8, seed=0)
    assert cnn.feature_shape(39, 39) == (8, 1, 1)
    assert cnn.smallest_side() == 39
    with pytest.raises(ValueError, match="64 x 38 leave no feature map; it needs 39 x 39"):
        cnn.feature_shape(64, 38)
    assert build_backbone("resnet10", None, 8, seed=0).smallest_side() == 1
    with pytest.raises(ValueError, match="12 x 12 leave no feature map; it needs 21 x 21"):
        build_backbone("torchvision:squeezenet1_0", None, 8, seed=0).feature_shape(12, 12)
    assert capfd.readouterr().err == ""
