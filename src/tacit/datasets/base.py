"""What a data set is: images, class ids, one split at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class ImageSet:
    """The images of one split. The classes of different splits are disjoint.

    Attributes:
        dataset: name of the data set.
        split: ``train``, ``val`` or ``test``.
        images: (n, height, width, channels) uint8; may be memory-mapped.
        labels: (n,) int64, from 0 to ``len(class_names) - 1``.
        class_names: one name per class id.
    """

    dataset: str
    split: str
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]

    @property
    def image_size(self) -> int:
        return int(self.images.shape[1])

    @property
    def channels(self) -> int:
        return int(self.images.shape[3])

    def fingerprint(self) -> str:
        """A short hash of labels, names and up to 1,000 images: enough to notice another data set or build."""
        digest = hashlib.sha256(repr((self.images.shape, self.class_names)).encode())
        digest.update(np.ascontiguousarray(self.labels, dtype="<i8").tobytes())
        step = max(1, len(self.images) // 1000)
        digest.update(np.ascontiguousarray(self.images[::step]).tobytes())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class DatasetSpec:
    """An entry of the registry.

    Attributes:
        name: as typed on the command line.
        summary: one line for ``tacit datasets``.
        load: ``load(split, path) -> ImageSet``; ``path`` is None for embedded data.
        labelled_ratio: share of each class whose labels are known, as the literature uses it.
        needs_path: whether the user must say where the files are.
    """

    name: str
    summary: str
    load: Callable[[str, Path | None], ImageSet]
    labelled_ratio: float
    needs_path: bool
