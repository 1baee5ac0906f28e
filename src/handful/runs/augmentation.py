"""Images moved, mirrored and recoloured at random, so that training does not learn them by heart."""

from __future__ import annotations

import torch
from torch import Tensor

SHIFT = 0.1  # of the side, at most, in each direction


def shift_and_flip(images: Tensor) -> Tensor:
    """Each image moved by up to a tenth of its side, what is missing mirrored in, and half of them flipped.

    images (n, height, width, channels), of any type -> the same. The draws are of the processor's generator on every
    device, since that is what checkpoints keep. For photographs: a mirrored letter is another letter.
    """
    count, height, width = images.shape[:3]
    rows, columns = _places(count, height), _places(count, width)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    places = torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]
    return images[tuple(place.to(images.device) for place in places)]


def _places(count: int, side: int) -> Tensor:
    """Where the pixels of a row or column come from: (count, side), moved and mirrored at the border."""
    most = round(SHIFT * side)
    moved = torch.arange(side) + torch.randint(-most, most + 1, (count, 1))
    return (side - 1) - ((side - 1) - moved.abs()).abs()


GREY = (0.299, 0.587, 0.114)  # what red, green and blue add to the brightness that people see


def colour_jitter(images: Tensor, strength: float) -> Tensor:
    """Each image with other brightness, contrast and saturation: factors from ``1 - strength`` to ``1 + strength``.

    images (n, height, width, channels) from 0 to 255 -> the same as float32. Saturation mixes each pixel with its grey,
    contrast with the mean grey of the image: both together are one matrix and one offset for each image.
    """
    count, channels = images.shape[0], images.shape[-1]
    factors = 1 + strength * (2 * torch.rand(3, count, 1, 1) - 1)  # of the processor's generator, as above
    brightness, contrast, saturation = factors.to(images.device)
    weights = torch.tensor(GREY if channels == 3 else [1 / channels] * channels, device=images.device)
    pixels = images.flatten(1, 2).float()  # (n, height x width, channels)
    mean = (pixels.mean(1) @ weights)[:, None, None]
    mixed = saturation * torch.eye(channels, device=images.device) + (1 - saturation) * weights[:, None]
    recoloured = torch.baddbmm((brightness * (1 - contrast) * mean).expand(count, 1, channels), pixels,
                               brightness * contrast * mixed)  # fmt: skip
    return recoloured.clamp_(0, 255).reshape(images.shape)
