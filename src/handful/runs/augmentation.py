"""Images moved and mirrored at random, so that a long training of few images learns what they show."""

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
