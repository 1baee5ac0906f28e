"""CONV4: four blocks of 3 x 3 convolution, batch norm, ReLU and 2 x 2 max pooling (Vinyals et al. 2016)."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from .conv4_graph import BLOCKS, Conv4Settings


class Conv4(nn.Module):
    """Images (n, channels, size, size) -> vectors (n, dim).

    Args:
        channels: 1 or 3.
        image_size: side of the square images, 28 or more.
        width: filters of every block.
        average_pool: add a 2 x 2 average pool on top, as TAC does for tieredImageNet (needs images of 32 or more).
        linear_output: no ReLU in the last block, so that vectors may be negative (Gidaris and Komodakis 2018).
        mirror: in evaluation, a vector stands for an image and its mirror image: it has the mean of their directions
            and of their lengths. For photographs, whose class does not depend on left and right.
        whiten: how many directions of the vectors are scaled at the end (:class:`Whitening`); 0 for none.

    Attributes:
        dim: length of a vector: ``width`` for 28 x 28 images, 1600 for 84 x 84.
        feature_shape: (channels, height, width) of the feature maps that the vector flattens: (64, 5, 5) for 84 x 84.
    """

    def __init__(
        self,
        channels: int,
        image_size: int,
        width: int = 64,
        average_pool: bool = False,
        linear_output: bool = False,
        mirror: bool = False,
        whiten: int = 0,
    ) -> None:
        super().__init__()
        side = Conv4Settings(channels, image_size, width, average_pool, linear_output, mirror, whiten).side()
        self.mirror = mirror
        blocks = [_block(channels if index == 0 else width, width) for index in range(BLOCKS)]
        if linear_output:
            del blocks[-1][-1]  # its ReLU
        self.blocks = nn.Sequential(*blocks, *([nn.AvgPool2d(2)] if average_pool else []))
        self.feature_shape = (width, side, side)
        self.dim = width * side * side
        self.whitening = Whitening(self.dim, whiten) if whiten else nn.Identity()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> Tensor:
        vectors = self._joined(images) if self.mirror and not self.training else self._vectors(images)
        whitened: Tensor = self.whitening(vectors)
        return whitened

    def _joined(self, images: Tensor) -> Tensor:
        both = torch.stack([self._vectors(images), self._vectors(images.flip(-1))])
        lengths = both.norm(dim=-1, keepdim=True)
        directions = both / lengths.clamp_min(torch.finfo(both.dtype).tiny)
        joined: Tensor = directions.mean(0) * lengths.mean(0)
        return joined

    def _vectors(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(images.contiguous(memory_format=torch.channels_last))
        return features.flatten(1)

    def extra_repr(self) -> str:
        return "mirror" if self.mirror else ""  # stored vectors go by how a network is written


class Whitening(nn.Module):
    """Scales some orthogonal directions of vectors: those in which images of the same training class differ most.

    Without values, as it is made, it changes nothing. :mod:`handful.runs.whitening` finds them; they are not learned.
    """

    directions: Tensor
    gains: Tensor

    def __init__(self, dim: int, count: int) -> None:
        super().__init__()
        self.register_buffer("directions", torch.zeros(count, dim))
        self.register_buffer("gains", torch.ones(count))

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors + vectors @ self.directions.mT * (self.gains - 1) @ self.directions


class LeanMaxPool2d(nn.Module):
    """2 x 2 max pooling that keeps for the backward pass where the maxima were, and not the images.

    PyTorch's keeps its input too, of which it needs the shape: a fifth of what a training step holds in memory.
    """

    def forward(self, images: Tensor) -> Tensor:
        pooled: Tensor = _MaxPool.apply(images)  # type: ignore[no-untyped-call]
        return pooled


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        pooled, places = torch.ops.aten.max_pool2d_with_indices(images, [2, 2], [2, 2])
        ctx.save_for_backward(places)
        ctx.shape = images.shape
        return cast(Tensor, pooled)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (places,), gradient = ctx.saved_tensors, gradients[0]
        layout = torch.channels_last if places.is_contiguous(memory_format=torch.channels_last) else None
        images = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=layout)  # unread
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return cast(Tensor, back(gradient, images, [2, 2], [2, 2], [0, 0], [1, 1], False, places))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    # Batch norm has a shift of its own: the convolution needs no bias. ReLU and the maximum can change places, and
    # after the pooling it has a quarter of the work and of the memory.
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), LeanMaxPool2d(), nn.ReLU(inplace=True))
