"""Made-up images for the tests of data sets."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def pixels(number: int, size: int = 84) -> NDArray[np.uint8]:
    """An image (size, size, 3) of its own for every number."""
    return np.random.default_rng(number).integers(0, 256, (size, size, 3), dtype=np.uint8)


def png(image: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()
