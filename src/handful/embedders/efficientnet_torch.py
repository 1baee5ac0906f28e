"""EfficientNet-Lite for PyTorch: what :mod:`.efficientnet_lite` describes, for graphics cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as nnf

from .efficientnet_lite import EPSILON, STEM, TOP, VARIANTS, Block, Variant, same_padding


class EfficientNetLite(nn.Module):
    """Images (n, 3, size, size) -> vectors (n, 1280), the means of the last feature maps."""

    dim = TOP

    def __init__(self, variant: Variant = VARIANTS[0]) -> None:
        super().__init__()
        described = list(variant.blocks())
        self.stem = _convolution(3, STEM, 3, stride=2)
        self.blocks = nn.Sequential(*map(_Block, described))
        self.top = _convolution(described[-1].outputs, TOP, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.top(self.blocks(self.stem(images.contiguous(memory_format=torch.channels_last))))
        return features.mean((2, 3))


class _Block(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        middle = block.inputs * block.expansion
        self.expand = _convolution(block.inputs, middle, 1) if block.expansion > 1 else nn.Sequential()
        self.depthwise = _convolution(middle, middle, block.kernel, block.stride, groups=middle)
        self.project = _convolution(middle, block.outputs, 1, active=False)
        self.skips = block.skips

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.project(self.depthwise(self.expand(images)))
        return found + images if self.skips else found


class _SamePadding(nn.Module):
    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, images: Tensor) -> Tensor:
        pads: list[int] = []
        for size in (images.shape[-1], images.shape[-2]):
            pads += same_padding(size, self.kernel, self.stride)
        return nnf.pad(images, pads)


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, active: bool = True
) -> nn.Sequential:
    padding = kernel // 2 if stride == 1 else 0
    return nn.Sequential(
        *([_SamePadding(kernel, stride)] if stride > 1 else []),
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=EPSILON),
        *([nn.ReLU6(inplace=True)] if active else []),
    )


def from_public_names(weights: Mapping[str, NDArray[Any]], network: EfficientNetLite) -> dict[str, Tensor]:
    """The weights under the names of our network; what classifies ImageNet's classes is left out.

    The public file names its convolutions and norms one by one, in the order in which ours are built.
    """
    ours = network.state_dict()
    theirs = [torch.tensor(value) for name, value in weights.items() if not name.startswith("_fc.")]
    if len(ours) != len(theirs):
        raise ValueError(f"{len(theirs)} tensors instead of {len(ours)}")
    return dict(zip(ours, theirs, strict=True))
