"""What rivals need of the rows of a task, whatever the labels: computed once for all of them and all their settings.

That is what makes thirty draws of every case cheap. None of it changes what a rival says, but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array
from scipy.sparse.csgraph import laplacian

Floats = NDArray[Any]

NEIGHBOURS = 10  # of LabelSpreading with the kernel "knn", the row itself among them
REDUCED = 150  # principal directions that LDA and self-training get, which take long in more


@dataclass(frozen=True)
class Shared:
    """The rows of a task and what follows from them without labels, each computed when it is first asked for.

    Attributes:
        x: (rows, features) as they are.
        rows: (rows, features) unit vectors around their mean, which is better for every rival.
    """

    x: Floats
    rows: Floats

    @classmethod
    def of(cls, x: Floats) -> Shared:
        rows = unit(np.asarray(x, dtype=np.float32))
        return cls(x, unit(rows - rows.mean(0)))

    @cached_property
    def cosines(self) -> Floats:
        """(rows, rows)."""
        return np.asarray(self.rows @ self.rows.T)

    @cached_property
    def reduced(self) -> Floats:
        """The rows in their principal directions (rows, 150)."""
        size = self.rows.shape[1]
        first = max(0, size - REDUCED)
        axes = eigh(self.rows.T @ self.rows, subset_by_index=[first, size - 1])[1]
        return np.ascontiguousarray(self.rows @ axes)

    @cached_property
    def near(self) -> NDArray[np.int64]:
        """(rows, most) the nearest other rows, nearest first."""
        cosines, count = self.cosines.copy(), min(NEIGHBOURS - 1, len(self.rows) - 1)
        np.fill_diagonal(cosines, -2)
        return largest(cosines, count)

    def links(self, count: int, itself: bool) -> csr_array:
        """A row for each row, with a 1 at its nearest others, and at itself if so wanted."""
        near = self.near[:, :count]
        if itself:
            near = np.concatenate([np.arange(len(near))[:, None], near], axis=1)
        ends = np.arange(0, near.size + 1, near.shape[1])
        return csr_array((np.ones(near.size, dtype=np.float32), near.ravel(), ends), (len(near), len(near)))

    @cached_property
    def knn_graph(self) -> csr_array:
        """The normalised graph of LabelSpreading, kernel "knn"."""
        return normalised(self.links(NEIGHBOURS - 1, True))

    @cached_property
    def rbf_solvers(self) -> dict[float, Any]:
        """Filled by LabelSpreading, kernel "rbf": its factorised graph for each gamma."""
        return {}


def unit(x: Floats) -> Floats:
    """Rows of length 1; rows of zeros stay."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))


def largest(values: Floats, count: int) -> NDArray[np.int64]:
    """(rows, count) where the largest values of each row are, largest first."""
    top = np.argpartition(-values, count - 1, axis=1)[:, :count] if count < values.shape[1] else None
    top = np.broadcast_to(np.arange(values.shape[1]), values.shape) if top is None else top
    order = np.argsort(-np.take_along_axis(values, top, 1), axis=1, kind="stable")
    return np.asarray(np.take_along_axis(top, order, 1))


def normalised(links: Any) -> Any:
    """Links of rows, divided by the roots of their degrees, without those of a row to itself."""
    found = -laplacian(links, normed=True)
    if isinstance(found, np.ndarray):
        np.fill_diagonal(found, 0)
        return found
    found = found.tocsr()
    found.setdiag(0)
    return csr_array(found)
