"""The registry of backbones: networks that ``handful train`` trains, each of which maps images to vectors.

A backbone is built with ``channels``, ``image_size`` and its own options, and has ``dim``, the length of a vector, and
``feature_shape``, the (channels, height, width) of the feature maps that the vector flattens; (dim, 1, 1) if it ends in
an average over each map. Other packages add to them by the entry points ``handful.backbones``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..errors import HandfulError
from ..plugins import Registry
from .conv4 import Conv4
from .resnet12 import ResNet12

_OWN: dict[str, Callable[..., nn.Module]] = {
    "conv4": Conv4,
    "resnet12": ResNet12,
}
BACKBONES: Registry[Callable[..., nn.Module]] = Registry(
    "backbone", _OWN, lambda name, loaded: None if callable(loaded) else f"it is {loaded!r:.60}, not a class"
)


def backbone_class(name: str) -> Callable[..., nn.Module]:
    """The class behind a name, or an error that lists the names there are."""
    if name not in BACKBONES:
        raise HandfulError(f"unknown backbone '{name}': choose one of {', '.join(BACKBONES)}")
    return BACKBONES[name]


def backbone_options(name: str) -> dict[str, Any]:
    """The options of a backbone and their defaults.

    Example:
        >>> backbone_options("resnet12")
        {'width': 64, 'dropout': 0.0}
    """
    parameters = inspect.signature(backbone_class(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in ("channels", "image_size")}


def build_backbone(name: str, channels: int, image_size: int, **options: Any) -> nn.Module:
    """Build a backbone by name; it maps (n, channels, size, size) to (n, dim)."""
    known = backbone_options(name)
    if unknown := sorted(set(options) - set(known)):
        raise HandfulError(f"the backbone '{name}' has no option '{unknown[0]}': choose from {', '.join(known)}")
    return backbone_class(name)(channels=channels, image_size=image_size, **options)


def feature_shape(backbone: nn.Module) -> tuple[int, int, int] | None:
    """The (channels, height, width) of a backbone's feature maps; None if it does not say."""
    return getattr(backbone, "feature_shape", None)


def for_inference(backbone: nn.Module) -> nn.Module:
    """A copy for evaluation with each batch norm folded into the convolution before it: one pass less per layer.

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


__all__ = [
    "BACKBONES",
    "Conv4",
    "ResNet12",
    "backbone_options",
    "build_backbone",
    "feature_shape",
    "for_inference",
    "to_input",
]
