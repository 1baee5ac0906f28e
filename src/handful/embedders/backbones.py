"""The registry of embedders: a backbone maps images to vectors and says how long they are (``dim``)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..errors import HandfulError
from .conv4 import Conv4

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "conv4": Conv4,
}


def build_backbone(name: str, channels: int, image_size: int, **options: Any) -> nn.Module:
    """Build an embedder by name; it has ``dim`` and maps (n, channels, size, size) to (n, dim)."""
    if name not in BACKBONES:
        raise HandfulError(f"unknown backbone '{name}': choose one of {', '.join(BACKBONES)}")
    return BACKBONES[name](channels=channels, image_size=image_size, **options)


def for_inference(backbone: nn.Module) -> nn.Module:
    """A copy for evaluation in which each convolution has swallowed the batch norm behind it: one pass less per layer.

    In evaluation a batch norm is a scale and a shift of each channel, and so can be part of the weights.
    """
    folded = copy.deepcopy(backbone).eval()
    for block in [module for module in folded.modules() if isinstance(module, nn.Sequential)]:
        names = list(block._modules)
        for name, after in pairwise(names):
            convolution, norm = block._modules[name], block._modules[after]
            if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                block._modules[name] = fuse_conv_bn_eval(convolution, norm)
                block._modules[after] = nn.Identity()
    return folded


def to_input(images: Tensor) -> Tensor:
    """Stored images (n, height, width, channels) uint8 -> network input (n, channels, height, width) in [-1, 1].

    Pixels stay interleaved in memory (channels last), which is the layout convolutions like best.
    """
    return images.permute(0, 3, 1, 2).to(torch.get_default_dtype()).div_(127.5).sub_(1.0)


__all__ = ["BACKBONES", "Conv4", "build_backbone", "for_inference", "to_input"]
