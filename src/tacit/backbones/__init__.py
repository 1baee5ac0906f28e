"""The registry of embedders: a backbone maps images to vectors and says how long they are (``dim``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TacitError
from .conv4 import Conv4

BACKBONES: dict[str, Callable[..., nn.Module]] = {
    "conv4": Conv4,
}


def build_backbone(name: str, channels: int, image_size: int, **options: Any) -> nn.Module:
    """Build an embedder by name; it has ``dim`` and maps (n, channels, size, size) to (n, dim)."""
    if name not in BACKBONES:
        raise TacitError(f"unknown backbone '{name}': choose one of {', '.join(BACKBONES)}")
    return BACKBONES[name](channels=channels, image_size=image_size, **options)


def to_input(images: Tensor) -> Tensor:
    """Stored images (n, height, width, channels) uint8 -> network input (n, channels, height, width) in [-1, 1].

    Pixels stay interleaved in memory (channels last), which is the layout convolutions like best.
    """
    return images.permute(0, 3, 1, 2).to(torch.float32).div_(127.5).sub_(1.0)


__all__ = ["BACKBONES", "Conv4", "build_backbone", "to_input"]
