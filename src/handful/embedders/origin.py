"""Which embedder made vectors: what a model of these vectors must know of it, to refuse the vectors of another."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import HandfulError
from .base import CROPPED, MOST_SIZE, STRETCH, Embedder
from .precomputed import MOST_DIM, Precomputed


@dataclass(frozen=True)
class Origin:
    """The embedder of some vectors.

    Attributes:
        name: as the user named it: ``efficientnet-lite0``, ``onnx:FILE``.
        weights: a checksum of its weights and normalisation, or of its code; "" if unknown. The type of the arithmetic
            is not part of it: bfloat16 on one machine and float32 on another go together.
        image_size, channels: of the images that it takes; 0 for vectors from a file.
        dim: length of a vector.
    """

    name: str
    weights: str
    image_size: int
    channels: int
    dim: int

    @classmethod
    def of(cls, embedder: Embedder | Precomputed) -> Origin:
        if isinstance(embedder, Precomputed):
            known: Origin | None = getattr(embedder, "origin", None)  # a folder of vectors says whose they are
            return known or cls(embedder.name, "", 0, 0, embedder.dim)
        weights = str(getattr(embedder, "weights", embedder.key))
        return cls(embedder.name, weights, embedder.image_size, embedder.channels, embedder.dim)

    @property
    def is_file(self) -> bool:
        """Whether the vectors come from a file, so that no new image can be embedded."""
        return self.image_size == 0

    @property
    def embedder(self) -> str:
        """The name by which the same vectors are to be had: earlier versions stretched photographs to a square."""
        old = self.name.startswith("efficientnet-lite") and ":" not in self.name and not self.weights.endswith(CROPPED)
        return f"{self.name}:{STRETCH}" if old and self.weights else self.name

    def check(self, embedder: Embedder | Precomputed) -> None:
        """Raise if an embedder gives other vectors than these."""
        self.check_origin(Origin.of(embedder))

    def check_origin(self, other: Origin) -> None:
        """The same for vectors of a known origin."""
        if self.is_file != other.is_file:
            raise HandfulError(f"the model was made with vectors of {self.name}, not of {other.name}")
        if self.dim != other.dim:
            raise HandfulError(
                f"the model was made with vectors of {self.name} of {self.dim} dimensions, but {other.name} gives "
                f"{other.dim}: name that embedder, or label anew"
            )
        if (self.image_size, self.channels) != (other.image_size, other.channels):
            raise HandfulError(
                f"the model was made with vectors of {self.name} for images of {self.image_size} x {self.image_size} x "
                f"{self.channels}, but {other.name} takes {other.image_size} x {other.image_size} x {other.channels}"
            )
        if self.weights and other.weights and self.weights != other.weights:
            raise HandfulError(
                f"the model was made with vectors of {self.name}, but {other.name} now has other weights or other code "
                f"({other.weights}, not {self.weights}): name that embedder, or label anew"
            )

    def fault(self) -> str | None:
        """What makes this the origin of no vectors, if it comes from a file."""
        if not isinstance(self.name, str) or not isinstance(self.weights, str):
            return "the embedder's name and checksum must be text"
        for value, least, most in (
            (self.image_size, 0, MOST_SIZE),
            (self.channels, 0, 3),
            (self.dim, 1, MOST_DIM),
        ):
            if type(value) is not int or not least <= value <= most:
                return f"the embedder's sizes must be whole numbers from {least} to {most}"
        return None
