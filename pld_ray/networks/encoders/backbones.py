"""Vision encoders: uint8 images in, feature maps out; built alike everywhere by name and seed."""

from __future__ import annotations

import difflib
import hashlib
from bisect import bisect_left

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from pld_ray.networks.encoders.convolutions import ResNet10, SmallCNN
from pld_ray.networks.encoders.of_policy import POLICY, read_policy_encoder
from pld_ray.networks.encoders.weights import load_weights

MEAN = (0.485, 0.456, 0.406)  # of ImageNet, per channel
STD = (0.229, 0.224, 0.225)
LARGEST_SIDE = 512  # up to which a smallest image size is searched
HEADS = ("avgpool", "adaptive_avg_pool2d", "mean", "classifier", "fc", "heads", "head")
"""What torchvision's classification networks call the first step after their feature map."""


class Backbone(nn.Module):
    """A feature extractor behind the conversion from uint8 [B, H, W, 3] to normalised floats.

    It stays in evaluation mode: the batch statistics of a few robot frames would spoil it.

    Args:
        name: what `build_backbone` was asked for.
        layers: from [B, 3, H, W] to a feature map [B, C, h, w].
    """

    mean: Tensor
    std: Tensor

    def __init__(self, name: str, layers: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.layers = layers
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1))
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Feature map [B, C, h, w] float32 of images [B, H, W, 3] uint8.

        Raises:
            ValueError: another dtype or shape.
        """
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise ValueError(
                f"vision encoder {self.name!r}: images are {images.dtype} of shape "
                f"{tuple(images.shape)}, need torch.uint8 [B, H, W, 3]"
            )
        x = images.permute(0, 3, 1, 2).float() / 255.0
        return self.layers((x - self.mean) / self.std)

    def train(self, mode: bool = True) -> Backbone:
        """Evaluation mode, whatever `mode` is."""
        return super().train(False)

    def feature_shape(self, height: int, width: int) -> tuple[int, int, int]:
        """(C, h, w) for images of this size.

        Raises:
            ValueError: they are too small: no feature map is left.
        """
        shape = self._shape_or_none(height, width)
        if shape is None:
            raise ValueError(
                f"vision_encoder_name={self.name!r}: images of {height} x {width} leave no "
                f"feature map; it needs {self.smallest_side()} x {self.smallest_side()} or more"
            )
        return shape

    def smallest_side(self) -> int:
        """Side in pixels of the smallest square images that leave a feature map (up to 512)."""
        sides = range(1, LARGEST_SIDE)
        return 1 + bisect_left(sides, True, key=lambda n: self._shape_or_none(n, n) is not None)

    @torch.no_grad()
    def _shape_or_none(self, height: int, width: int) -> tuple[int, int, int] | None:
        image = torch.zeros(1, height, width, 3, dtype=torch.uint8, device=self.mean.device)
        try:
            _, channels, rows, columns = self(image).shape
        except (RuntimeError, AssertionError):  # a window larger than what is left
            return None
        return (channels, rows, columns) if rows and columns else None

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the SHA-256 over the name, every parameter and every buffer."""
        digest = hashlib.sha256(self.name.encode())
        for key, tensor in self.state_dict().items():
            digest.update(key.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def build_backbone(name: str, weights: str | None, hidden_dim: int, seed: int) -> Backbone:
    """The encoder of that name, with weights from a local file or drawn from `seed`.

    Args:
        name: `cnn`, `resnet10`, `torchvision:NAME` (a classification network, up to its global
            pooling), `timm:NAME`, or `policy`: that of a trained policy.
        weights: safetensors, or a .pth of tensors, with the encoder's own names (`ResNet10` lists
            them; torchvision's and timm's for theirs, heads are ignored). None draws them. With
            `policy` the folder of that policy, see `read_policy_encoder`.
        hidden_dim: channels of `cnn`.
        seed: of random weights; the global generator is left alone.

    Raises:
        ValueError: an unknown name, or a file that is missing or does not fit; nothing is
            downloaded.
    """
    if name == POLICY:
        return policy_backbone(weights)
    # on the CPU's generator alone: the same weights with and without a GPU
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        model = make_model(name, hidden_dim)
    layers = feature_layers(name, model)
    if weights is not None:
        kept = {id(tensor) for tensor in layers.state_dict(keep_vars=True).values()}
        whole = model.state_dict(keep_vars=True)
        needed = {key for key, tensor in whole.items() if id(tensor) in kept}
        ignored = ("fc.", "head.", "classifier.") if name.startswith("timm:") else ()
        load_weights(name, model, needed, weights, ignored)
    return Backbone(name, layers)


def policy_backbone(folder: str | None) -> Backbone:
    """The vision encoder of a trained policy, which keeps the name of its own architecture."""
    if folder is None:
        raise ValueError(
            "vision_encoder_name='policy' needs vision_encoder_weights: the folder of the policy"
        )
    encoder = read_policy_encoder(folder)
    backbone = build_backbone(encoder.name, None, encoder.hidden_dim, 0)
    own = {k: v for k, v in backbone.state_dict().items() if not k.endswith("num_batches_tracked")}
    if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in encoder.state.items()}:
        raise ValueError(
            f"vision_encoder_weights={folder}: its weights do not fit {encoder.name!r}, which its "
            "configuration names; the folder is damaged"
        )
    backbone.load_state_dict(encoder.state, strict=False)
    return backbone


def make_model(name: str, hidden_dim: int) -> nn.Module:
    """The whole network of that name, with random weights."""
    family, _, model_name = name.partition(":")
    if name == "cnn":
        return SmallCNN(hidden_dim)
    if name == "resnet10":
        return ResNet10()
    if family == "torchvision":
        return torchvision_model(name, model_name)
    if family == "timm":
        return timm_model(name, model_name)
    raise ValueError(
        f"vision_encoder_name={name!r}: must be cnn, resnet10, torchvision:NAME, timm:NAME or "
        "policy"
    )


def torchvision_model(name: str, model_name: str) -> nn.Module:
    """A classification network of torchvision, with its head."""
    from torchvision import models

    known = models.list_models(module=models)
    if model_name not in known:
        close = difflib.get_close_matches(model_name, known) or ["resnet18"]
        raise ValueError(
            f"vision_encoder_name={name!r}: torchvision has no {model_name!r}; "
            f"for example {', '.join(close)}"
        )
    return models.get_model(model_name, weights=None)


def timm_model(name: str, model_name: str) -> nn.Module:
    """A network of timm, without pooling and head."""
    try:
        import timm
    except ImportError as error:
        raise ValueError(f"vision_encoder_name={name!r} needs timm: pip install timm") from error
    if not timm.is_model(model_name):  # of the hub's too, which would be downloaded
        raise ValueError(f"vision_encoder_name={name!r}: timm has no {model_name!r}")
    return timm.create_model(model_name, pretrained=False, num_classes=0, global_pool="")


def feature_layers(name: str, model: nn.Module) -> nn.Module:
    """The part of a network up to its feature map, sharing its weights.

    Raises:
        ValueError: it has none for images of any size, as most transformers.
    """
    if name in ("cnn", "resnet10"):
        return model
    layers = model.eval()
    if name.startswith("torchvision:"):
        layers = BeforeHead(model)
    if not has_feature_map(model, layers):
        raise ValueError(
            f"vision_encoder_name={name!r}: it has no feature map [C, h, w] for images of any "
            "size; choose a convolutional one, for example torchvision:resnet18"
        )
    return layers


@torch.no_grad()
def has_feature_map(model: nn.Module, layers: nn.Module) -> bool:
    """Whether the layers give [B, C, h, w] for images of another size than ImageNet's 224."""
    try:
        features = layers(torch.zeros(1, 3, 160, 160))
    except (RuntimeError, AssertionError):
        return False
    # timm's Swin puts the channels last, where the number that it announces shows
    channels = getattr(model, "num_features", None)
    return features.ndim == 4 and channels in (None, features.shape[1])


class BeforeHead(nn.Module):
    """A torchvision classification network, cut before its global pooling or classifier."""

    def __init__(self, model: nn.Module) -> None:
        from torchvision.models.feature_extraction import (
            create_feature_extractor,
            get_graph_node_names,
        )

        super().__init__()
        _, steps = get_graph_node_names(model)
        head = next(i for i, step in enumerate(steps) if step.partition(".")[0] in HEADS)
        extractor = create_feature_extractor(model, {steps[head - 1]: "map"})
        # the extractor itself holds two graphs, and a deep copy of it is in training mode
        self.model = GraphModule(extractor, extractor.eval_graph).eval()

    def forward(self, x: Tensor) -> Tensor:
        # a call of the module itself would print the code around an error
        return self.model.forward(x)["map"]
