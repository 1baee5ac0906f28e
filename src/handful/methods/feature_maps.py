"""Vectors as the feature maps they were: what methods with convolutions of their own share."""

from __future__ import annotations

import math

from torch import Tensor, nn

from ..errors import HandfulError

CONV4_WIDTH = 64


def map_shape(dim: int, channels: int = 0) -> tuple[int, int]:
    """Channels and side of the square map behind a vector of length ``dim``.

    Args:
        dim: length of a vector.
        channels: 0 for CONV4's 64 where that makes a square, and else ``dim``: the vector is a map of 1 x 1.

    Raises:
        HandfulError: if so many channels do not make a square map.

    Example:
        >>> map_shape(1600), map_shape(20), map_shape(180, channels=20)
        ((64, 5), (20, 1), (20, 3))
    """
    for count in [channels] if channels else [CONV4_WIDTH, dim]:
        side = math.isqrt(max(dim // count, 0)) if count > 0 else 0
        if side > 0 and count * side * side == dim:
            return count, side
    raise HandfulError(f"vectors of length {dim} are no square maps of {channels} channels: set channels={dim} or 0")


def to_maps(vectors: Tensor, shape: tuple[int, int]) -> Tensor:
    """(..., dim) -> (n, channels, side, side) for the ``shape`` of :func:`map_shape`; CONV4 flattens by channel."""
    channels, side = shape
    return vectors.reshape(-1, channels, side, side)


def finish(outputs: int) -> nn.Sequential:
    """What follows a convolution: batch norm, 2 x 2 pooling and ReLU; a side of s becomes :func:`pooled` (s).

    Pooling rounds up, so that a map of 1 x 1 stays one and nothing at the border of a 5 x 5 map is lost.
    """
    return nn.Sequential(nn.BatchNorm2d(outputs), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU())


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3 x 3, keeps the side; the batch norm behind it has a shift of its own, so it needs none."""
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


def pooled(side: int) -> int:
    return (side + 1) // 2
