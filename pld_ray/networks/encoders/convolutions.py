"""The two vision encoders of our own: SERL's ResNet-10 and HIL-SERL's small network."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 4  # of every GroupNorm


def pad_same(x: Tensor) -> Tensor:
    """Zeros around [B, C, H, W] for a 3x3 window of stride 2, where XLA's "SAME" puts them.

    An even size gets one row after it and none before it, an odd size one on either side; a
    symmetric padding would shift every window by a pixel against SERL's weights.
    """
    height, width = x.shape[-2:]
    return F.pad(x, (width % 2, 1, height % 2, 1))


class ResNetBlock(nn.Module):
    """conv 3x3 - GroupNorm - ReLU - conv 3x3 - GroupNorm, plus the input; then ReLU.

    The shortcut is a strided 1x1 convolution with GroupNorm where the shape changes.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        padding = 1 if stride == 1 else 0
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=padding, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, outputs)
        self.projects = inputs != outputs or stride != 1
        if self.projects:
            self.conv_proj = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.norm_proj = nn.GroupNorm(GROUPS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x if self.stride == 1 else pad_same(x))
        y = self.conv2(F.relu(self.norm1(y)))
        shortcut = self.norm_proj(self.conv_proj(x)) if self.projects else x
        return F.relu(self.norm2(y) + shortcut)


class ResNet10(nn.Module):
    """SERL's `resnetv1-10` without its head: [B, 3, H, W] -> [B, 512, H/32, W/32], rounded up.

    A 7x7/2 stem, 3x3/2 max pooling, four stages of one block (64, 128, 256, 512 channels, stride 2
    from the second), GroupNorm of 4 groups with eps 1e-5; from `serl_launcher/vision/resnet_v1.py`
    of rail-berkeley/serl.

    Names in a weights file, and SERL's for the same tensors (kernels transposed to
    [out, in, h, w]):

        conv_init.weight, norm_init.{weight,bias}         conv_init/kernel, norm_init/{scale,bias}
        blocks.N.{conv1,conv2}.weight                     ResNetBlock_N/Conv_{0,1}/kernel
        blocks.N.{norm1,norm2}.{weight,bias}              ResNetBlock_N/MyGroupNorm_{0,1}/...
        blocks.N.conv_proj.weight, N from 1               ResNetBlock_N/conv_proj/kernel
        blocks.N.norm_proj.{weight,bias}, N from 1        ResNetBlock_N/norm_proj/{scale,bias}
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv_init = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.norm_init = nn.GroupNorm(GROUPS, 64)
        self.blocks = nn.Sequential(
            ResNetBlock(64, 64, stride=1),
            ResNetBlock(64, 128, stride=2),
            ResNetBlock(128, 256, stride=2),
            ResNetBlock(256, 512, stride=2),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm_init(self.conv_init(x)))
        x = F.max_pool2d(pad_same(x), 3, 2)  # after a ReLU zeros pad as well as -inf
        return self.blocks(x)


class SmallCNN(nn.Sequential):
    """Four strided convolutions with ReLU: 7x7, 5x5, 3x3, 3x3, each /2 and without padding.

    What HIL-SERL in LeRobot reads images with where no vision encoder is named
    (`DefaultImageEncoder`). Images of 39 pixels are the smallest that leave a feature map.

    Args:
        channels: of every layer.
    """

    def __init__(self, channels: int) -> None:
        layers: list[nn.Module] = []
        for inputs, kernel in ((3, 7), (channels, 5), (channels, 3), (channels, 3)):
            layers += [nn.Conv2d(inputs, channels, kernel, 2), nn.ReLU(inplace=True)]
        super().__init__(*layers)
