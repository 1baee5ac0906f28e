"""The interface of an embedder: images to vectors."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..datasets.images import printable
from ..errors import HandfulError

Pixels = NDArray[np.uint8]  # (n, size, size, channels)
Vectors = NDArray[np.float32]  # (n, dim)

STRETCH = "stretch"  # behind the colon of an embedder that would take the middle of an image
CROPPED = "-crop"  # ends the checksum of the weights of one that does

MOST_SIZE = 4096  # side of the images that an embedder may ask for
BATCH_PIXELS = 64 * 224 * 224  # of the images that are embedded together


class Embedder(Protocol):
    """Maps images to vectors.

    Attributes:
        name: as the user named it.
        key: names all that the vectors depend on: weights, code, arithmetic. Vectors are kept under it, together with
            their length and the image size; they are not kept if it is empty.
        dim: length of a vector.
        image_size: side of the square images that it takes.
        channels: 3, or 1 for grey images.

    It may have more: ``crop``, whether the middle of an image is taken rather than all of it stretched to a square;
    ``any_thread``, whether it may compute in another thread than the one that loaded it; and ``embed_alone``, which any
    number of threads may call at once.
    """

    name: str
    key: str
    dim: int
    image_size: int
    channels: int

    def embed(self, images: Pixels) -> Vectors:
        """Images (n, size, size, channels) uint8 -> (n, dim) float32."""


def checked_vectors(embedder: Embedder, vectors: Vectors, count: int) -> Vectors:
    """What an embedder gave for so many images, of the promised shape, as float32; some may not be finite."""
    if vectors.shape != (count, embedder.dim) or vectors.dtype.kind != "f":
        raise HandfulError(
            f"the embedder {embedder.name} should give floats of shape {(count, embedder.dim)}, got "
            f"{vectors.dtype} of shape {vectors.shape}"
        )
    with np.errstate(over="ignore"):  # what is too large for float32 is not finite there
        return np.asarray(vectors, dtype=np.float32)


def reason(error: BaseException) -> str:
    """Describe an error of third-party code in one line: its type, and the first line of its message."""
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (f": {printable(lines[0])}" if lines else "")
