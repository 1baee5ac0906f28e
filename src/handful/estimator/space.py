"""What does not depend on labels, computed once by `fit`: reduced rows, their nearest rows, and a walk among these.

Rows are projected on their principal axes and drawn a little towards their nearest neighbours. Neighbours are looked
for among the *anchors*: all rows of a small set, of a large one a few thousand, evenly spaced by their distance from
the centre. So a new row goes through the same map as those of `fit`, without their images or vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from .rows import Floats, Frame, Points, chunks, unit

DIMENSIONS = 150  # principal axes that are kept
NEIGHBOURS = 10
SMOOTHING = 0.3  # how far a row is drawn towards the mean of its neighbours
ANCHORS, FEWEST_ANCHORS = 5000, 1000
COMPARED = 1 << 30  # pairs of rows and anchors that may be compared
AXES_FROM = 20_000  # rows from which the principal axes are computed
HALVED = 256 << 20  # bytes of reduced rows from which they are kept in half precision
STEPS, STAY = 20, 0.8  # of the walk: its length, and the share that moves on in a step
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Projection:
    """Turns rows of X into reduced rows; holds nothing of X but its axes and the anchors.

    Attributes:
        frame: centring, and the head's map.
        centre: (dim,) the mean of the unit vectors.
        axes: (dim, reduced) the principal axes; None keeps the unit vectors as they are.
        anchors: (anchors, reduced) reduced rows before smoothing.
        smoothing: how far rows are drawn towards their neighbours.
    """

    frame: Frame
    centre: Floats
    axes: Floats | None
    anchors: Floats
    smoothing: float = SMOOTHING

    def reduce(self, vectors: Floats) -> Floats:
        """Unit vectors (n, dim) on the axes: (n, reduced)."""
        return reduced(vectors, self.centre, self.axes)

    def neighbours(self, reduced: Floats) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The nearest anchors, nearest first (n, neighbours), and which anchor a row is itself (n,), -1 if none."""
        count = min(NEIGHBOURS, len(self.anchors) - 1)
        near = np.zeros((len(reduced), max(count, 0)), dtype=np.int32)
        itself = np.full(len(reduced), -1, dtype=np.int32)
        if count < 1:
            return near, itself
        anchors, same = unit(self.anchors), 1 - 50 * float(np.finfo(reduced.dtype).eps)
        for rows in chunks(reduced, len(anchors)):
            cosines = unit(reduced[rows]) @ anchors.T
            every, best = np.arange(len(cosines)), cosines.argmax(1)
            is_anchor = cosines[every, best] >= same
            itself[rows] = np.where(is_anchor, best, -1)
            cosines[every[is_anchor], best[is_anchor]] = -2
            top = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
            order = np.argsort(-np.take_along_axis(cosines, top, 1), axis=1, kind="stable")
            near[rows] = np.take_along_axis(top, order, 1)
        return near, itself

    def mean_of(self, near: NDArray[np.int32]) -> Floats:
        """The mean of the neighbours of each row: (n, reduced)."""
        total: Floats = np.zeros((len(near), self.anchors.shape[1]), dtype=self.anchors.dtype)
        for column in near.T:
            total += self.anchors[column]
        total /= max(1, near.shape[1])
        return total

    def smooth(self, reduced: Floats, near: NDArray[np.int32]) -> Floats:
        """Reduced rows drawn towards the mean of their neighbours."""
        if not self.smoothing or not near.shape[1]:
            return reduced
        return (1 - self.smoothing) * reduced + self.smoothing * self.mean_of(near)


@dataclass(frozen=True)
class View:
    """Rows as the estimator sees them, of `fit` or new.

    Attributes:
        smoothed: (n, reduced) smoothed reduced rows.
        near: (n, neighbours) their nearest anchors, nearest first.
        itself: (n,) which anchor a row is, -1 if none.
        blank: (n,) bool, rows without a direction, of which nothing can be said.
    """

    smoothed: Floats
    near: NDArray[np.int32]
    itself: NDArray[np.int32]
    blank: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.smoothed)

    def rows(self, rows: slice | Rows) -> View:
        """Some of the rows."""
        return View(self.smoothed[rows], self.near[rows], self.itself[rows], self.blank[rows])

    def spread(self, values: Floats) -> Floats:
        """Values of the anchors (anchors, k), read at each row: its own if it is one, else its neighbours' mean."""
        found: Floats = np.zeros((len(self), values.shape[1]), dtype=values.dtype)
        for column in self.near.T:
            found += values[column]
        found /= max(1, self.near.shape[1])
        mine = self.itself >= 0
        found[mine] = values[self.itself[mine]]
        return found


@dataclass(frozen=True)
class Space:
    """The rows of `fit`.

    Attributes:
        projection: how any row gets here.
        view: the rows.
        core: (anchors,) which rows are the anchors, by their distance from the centre.
        order: (n,) the place of a row by that distance: an order that does not depend on that of the rows.
        walk: (anchors, anchors) sparse: a step of a random walk between neighbours.
    """

    projection: Projection
    view: View
    core: Rows
    order: Rows
    walk: csr_array

    @classmethod
    def of(cls, x: Floats, frame: Frame, reduce: bool = True) -> Space:
        """Without ``reduce``, unit vectors are neither projected nor smoothed: for heads with references."""
        points = Points(x, frame)
        blank = points.row_shift == 0
        ordered = np.argsort(points.row_shift, kind="stable")
        order = np.empty(len(x), dtype=np.int64)
        order[ordered] = np.arange(len(x))
        ordered = ordered[~blank[ordered]]
        centre, axes = _axes(points, evenly(ordered, AXES_FROM)) if reduce else (frame.shift * 0, None)
        core = evenly(ordered, int(np.clip(COMPARED // max(1, len(x)), FEWEST_ANCHORS, ANCHORS)))
        anchors = reduced(points.vectors(core), centre, axes)
        projection = Projection(frame, centre, axes, anchors, SMOOTHING if reduce else 0.0)
        view = _view(projection, points)
        return cls(projection, view, core, order, _walk(view.near[core], x.dtype))

    def raw(self, rows: Rows) -> Floats:
        """Reduced rows before smoothing, of some rows."""
        smoothed, share = self.view.smoothed[rows].astype(self.projection.anchors.dtype), self.projection.smoothing
        if not share or not self.view.near.shape[1]:
            return smoothed
        return (smoothed - share * self.projection.mean_of(self.view.near[rows])) / (1 - share)

    def smoothed(self, rows: Rows) -> Floats:
        return self.view.smoothed[rows].astype(self.projection.anchors.dtype)

    def walked(self, rows: Rows, columns: NDArray[np.int64], count: int) -> Floats:
        """Random walks from some rows, in one of ``count`` columns each: how often an anchor is met, (anchors, count).

        A row that is no anchor starts at its neighbours.
        """
        seed = np.zeros((len(self.core), count), dtype=self.projection.anchors.dtype)
        mine = self.view.itself[rows] >= 0
        np.add.at(seed, (self.view.itself[rows[mine]], columns[mine]), 1)
        near = self.view.near[rows[~mine]]
        np.add.at(seed, (near, columns[~mine][:, None]), 1 / max(1, near.shape[1]))
        found: Floats = seed.copy()
        for _ in range(STEPS):
            found = STAY * (self.walk @ found) + (1 - STAY) * seed
        return found


def reduced(vectors: Floats, centre: Floats, axes: Floats | None) -> Floats:
    found: Floats = vectors if axes is None else (vectors - centre) @ axes
    return found


def see(projection: Projection, x: Floats) -> View:
    """New rows of X as the estimator sees them."""
    return _view(projection, Points(x, projection.frame))


def evenly(ordered: Rows, most: int) -> Rows:
    """At most so many of these, evenly spaced."""
    if len(ordered) <= most:
        return ordered
    picked: Rows = ordered[np.linspace(0, len(ordered) - 1, most).round().astype(np.int64)]
    return picked


def _axes(points: Points, rows: Rows) -> tuple[Floats, Floats]:
    """The mean of some unit vectors, and their principal axes (dim, reduced)."""
    dim, kind = len(points.frame.shift), points.x.dtype
    total, squares = np.zeros(dim), np.zeros((dim, dim))
    for part in chunks(points.x, dim, len(rows)):
        vectors = points.vectors(rows[part])
        total += vectors.sum(0, dtype=np.float64)
        squares += vectors.T @ vectors
    count = max(1, len(rows))
    centre = total / count
    values, axes = np.linalg.eigh(squares / count - np.outer(centre, centre))
    kept = max(1, min(DIMENSIONS, len(rows) - 1, int((values > 1e-10 * max(values[-1], 1e-300)).sum())))
    return centre.astype(kind), np.ascontiguousarray(axes[:, ::-1][:, :kept]).astype(kind)


def _view(projection: Projection, points: Points) -> View:
    count, width = len(points), projection.anchors.shape[1]
    kind: Any = points.x.dtype
    near_count = max(0, min(NEIGHBOURS, len(projection.anchors) - 1))
    smoothed = np.empty((count, width), dtype=np.float16 if count * width * kind.itemsize > HALVED else kind)
    near, itself = np.empty((count, near_count), dtype=np.int32), np.empty(count, dtype=np.int32)
    for rows in chunks(points.x, max(width, len(points.frame.shift))):
        reduced = projection.reduce(points.vectors(rows))
        near[rows], itself[rows] = projection.neighbours(reduced)
        smoothed[rows] = projection.smooth(reduced, near[rows])
    return View(smoothed, near, itself, points.row_shift == 0)


def _walk(near: NDArray[np.int32], kind: Any) -> csr_array:
    """Neighbours of the anchors (anchors, k) -> the symmetric, normalised adjacency."""
    count, width = near.shape
    ends = np.arange(0, count * width + 1, max(1, width))[: count + 1] if width else np.zeros(count + 1, dtype=int)
    links = csr_array((np.ones(count * width, dtype=kind), near.ravel(), ends), (count, count))
    links = links.maximum(links.T)
    degree = np.sqrt(np.maximum(np.asarray(links.sum(1)).ravel(), 1)).astype(kind)
    links = links.tocsr()
    links.data /= np.repeat(degree, np.diff(links.indptr)) * degree[links.indices]
    return links
