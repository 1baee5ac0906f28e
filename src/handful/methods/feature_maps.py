"""Vectors read as feature maps: what is common to the methods that have convolutions of their own."""

from __future__ import annotations

import math

from torch import Tensor, nn

from ..errors import HandfulError

CONV4_WIDTH = 64


Shape = tuple[int, int, int]  # channels, height, width


def map_shape(dim: int, channels: int = 0, feature_shape: Shape | None = None) -> Shape:
    """Channels, height and width of the feature map that a vector of length ``dim`` flattens.

    Args:
        dim: length of a vector.
        channels: if above 0, of a square map, whatever ``feature_shape`` says.
        feature_shape: as the backbone gives it; without it, 64 channels (CONV4) where that makes a square map, and else
            ``dim`` channels of 1 x 1.

    Raises:
        HandfulError: if the shape is not that of ``dim`` numbers.

    Example:
        >>> map_shape(1600), map_shape(20), map_shape(180, channels=20), map_shape(256, feature_shape=(256, 1, 1))
        ((64, 5, 5), (20, 1, 1), (20, 3, 3), (256, 1, 1))
    """
    if feature_shape is not None and not channels:
        if len(feature_shape) != 3 or min(feature_shape) < 1 or math.prod(feature_shape) != dim:
            raise HandfulError(
                f"this method needs feature maps, but the backbone's feature_shape {tuple(feature_shape)} is not the "
                f"(channels, height, width) of a vector of length {dim}: use another backbone or method"
            )
        return feature_shape
    for count in [channels] if channels else [CONV4_WIDTH, dim]:
        side = math.isqrt(max(dim // count, 0)) if count > 0 else 0
        if side > 0 and count * side * side == dim:
            return count, side, side
    raise HandfulError(f"vectors of length {dim} are no square maps of {channels} channels: set channels={dim} or 0")


def to_maps(vectors: Tensor, shape: Shape) -> Tensor:
    """(..., dim) -> (n, channels, height, width) with a ``shape`` of :func:`map_shape`; channels come first."""
    return vectors.reshape(-1, *shape)


class AlwaysBatchNorm(nn.BatchNorm2d):
    """Batch norm by the statistics of the batch in evaluation, too; it keeps running ones, but does not use them."""

    def forward(self, maps: Tensor) -> Tensor:
        if self.training:
            return super().forward(maps)
        return nn.functional.batch_norm(maps, None, None, self.weight, self.bias, training=True, eps=self.eps)


def finish(outputs: int, norm: type[nn.BatchNorm2d] = nn.BatchNorm2d) -> nn.Sequential:
    """What follows a convolution: batch norm, 2 x 2 pooling and ReLU; a side of s becomes (s + 1) // 2.

    Pooling rounds up, so that a map of 1 x 1 stays one and nothing at the border of a 5 x 5 map is lost.
    """
    return nn.Sequential(norm(outputs), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU())


def convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """3 x 3, keeps the side; the batch norm behind it has a shift of its own, so it needs none."""
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


def pooled_twice(shape: Shape) -> int:
    """Pixels of a map after two blocks that end in :func:`finish`."""
    _, height, width = shape
    return ((height + 3) // 4) * ((width + 3) // 4)
