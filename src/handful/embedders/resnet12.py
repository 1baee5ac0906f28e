"""ResNet-12, as in TapNet (Yoon, Seo and Moon, ICML 2019) and TADAM (Oreshkin, Rodríguez López and Lacoste 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import HandfulError
from .conv4 import LeanMaxPool2d

LEAST_SIZE = 16  # four poolings leave one pixel


class ResNet12(nn.Module):
    """Images (n, channels, size, size) -> vectors (n, dim): four residual blocks and a global average.

    Args:
        channels: 1 or 3.
        image_size: side of the square images, 16 or more.
        width: filters of the first block; each block has twice those of the one before: 64-128-256-512.
        dropout: share of a block's outputs that is set to 0 in training.

    Attributes:
        dim: length of a vector, eight times ``width``.
        feature_shape: (dim, 1, 1), since the maps are averaged.
    """

    def __init__(self, channels: int, image_size: int, width: int = 64, dropout: float = 0.0) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise HandfulError(f"resnet12 takes images of 1 or 3 channels, got {channels}")
        if image_size < LEAST_SIZE:
            least = f"{LEAST_SIZE} x {LEAST_SIZE}"
            raise HandfulError(f"resnet12 takes images of {least} or more, got {image_size} x {image_size}")
        if not 0 <= dropout < 1:
            raise HandfulError(f"the dropout of resnet12 must be from 0 to below 1, got {dropout}")
        widths = [channels, width, 2 * width, 4 * width, 8 * width]
        self.blocks = nn.Sequential(*(_Block(widths[i], widths[i + 1], dropout) for i in range(4)))
        self.dim = widths[-1]
        self.feature_shape = (self.dim, 1, 1)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(images.contiguous(memory_format=torch.channels_last))
        return features.mean((2, 3))


class _Block(nn.Module):
    """Three 3 x 3 convolutions plus a 1 x 1 shortcut, then ReLU, 2 x 2 max pooling and drop-out."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_convolution(inputs, outputs, 3), nn.ReLU(inplace=True),
            *_convolution(outputs, outputs, 3), nn.ReLU(inplace=True),
            *_convolution(outputs, outputs, 3),
        )  # fmt: skip
        self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1))
        # ReLU and the maximum commute; after the pooling, ReLU has a quarter of the work.
        self.finish = nn.Sequential(LeanMaxPool2d(), nn.ReLU(inplace=True))
        self.dropout = Dropout(dropout) if dropout else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.dropout(self.finish(self.residual(images) + self.shortcut(images)))
        return found


class Dropout(nn.Module):
    """Drop-out whose masks are drawn on the CPU, whatever the device of the images.

    A checkpoint holds the state of the CPU's generator, so that a resumed run draws the same masks.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, images: Tensor) -> Tensor:
        if not self.training:
            return images
        keep = 1 - self.rate
        mask = torch.empty(images.shape, dtype=torch.uint8, memory_format=torch.channels_last).bernoulli_(keep)
        return images * mask.to(images.device) / keep


def _convolution(inputs: int, outputs: int, kernel: int) -> tuple[nn.Module, nn.Module]:
    # Batch norm has a shift of its own: the convolution needs no bias.
    return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
