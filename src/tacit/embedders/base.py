"""What an embedder is."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (n, size, size, channels)
Vectors = NDArray[np.float32]  # (n, dim)


class Embedder(Protocol):
    """Maps images to vectors.

    Attributes:
        name: as the user named it.
        key: names all that the vectors depend on: weights, image size, arithmetic. Vectors are kept under it.
        dim: length of a vector.
        image_size: side of the square images that it takes.
        channels: 3, or 1 for grey images.
    """

    name: str
    key: str
    dim: int
    image_size: int
    channels: int

    def embed(self, images: Pixels) -> Vectors:
        """Images (n, size, size, channels) uint8 -> (n, dim) float32."""
