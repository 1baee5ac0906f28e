"""Soft k-means around labelled points for any number of rows: the computation of the estimator.

Everything is linear in the points, and they are only ever read. A row x of X stands for the unit vector

    f = a A x - b t,    A the head's map (or none), t = A m, m the mean direction of all rows,

with two numbers per row, its scale a and its shift b: x is scaled to unit length, centred by m, scaled again, mapped,
scaled again. So a cosine with a direction d is a (A^T d) . x - b (t . d), and a weighted sum of the f is
A (sum of w a x) - (sum of w b) t: two thin products with X itself per pass, a chunk of rows at a time, and no copy of
X. A row without a direction has a = b = 0, and the same cosine, 0, with every class.

Only the direction of a row counts, whatever its length. Rows whose squares are too large or too small for their type
are multiplied by a power of two, which is exact, whenever their chunk is read (`measured`); all other chunks are used
as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit

Floats = NDArray[np.floating[Any]]

CHUNK_BYTES = 64 << 20  # of the rows of X that are read at a time, and of their cosines
GAP = 5.0  # nats between the best and the second best class of a point, on average: see docs/estimator.md
TINY = 1e-12  # of a sum in float64: what is shorter has cancelled out
ROUNDING = 4  # machine epsilons: what is shorter, of a difference of unit vectors, is their rounding
FREE, NONE = -1, -2  # labels of unlabelled points, and of points known to be of no class
WITHOUT_OTHERS = 2  # refinements before the clusters of no class join, in which doubtful points count little


@dataclass(frozen=True)
class Frame:
    """Centring, and the head's map, that turn rows of X into unit vectors.

    Attributes:
        centre: (features,) the mean of the rows, each scaled to unit length; or zero.
        map: (dim, features) with a largest entry of about one, or None.
    """

    centre: Floats
    map: Floats | None = None

    @classmethod
    def of(cls, x: Floats, map: Floats | None = None, centred: bool = True) -> Frame:
        total = np.zeros(x.shape[1])
        for rows in chunks(x) if centred else ():
            part, length, _ = measured(x[rows])
            total += inverse(length, 0) @ part
        return cls((total / len(x)).astype(x.dtype), None if map is None else mild(map).astype(x.dtype))

    @property
    def shift(self) -> Floats:
        return self.centre if self.map is None else self.map @ self.centre


class Points:
    """The rows of X as centred and mapped unit vectors (n, dim), which are not stored.

    Attributes:
        row_scale, row_shift: (n,), a and b above.
        powers: (n,) of two, by which rows are multiplied when they are read; mostly 0.
    """

    def __init__(self, x: Floats, frame: Frame) -> None:
        self.x, self.frame = x, frame
        self.row_scale, self.row_shift = (np.empty(len(x), dtype=x.dtype) for _ in range(2))
        self.powers = np.empty(len(x), dtype=np.int16)
        centre, rounding = frame.centre, ROUNDING * np.finfo(x.dtype).eps
        for rows in chunks(x, 0 if frame.map is None else len(frame.map)):
            part, length, self.powers[rows] = measured(x[rows])
            once = inverse(length, 0)
            unit = part * once[:, None] - centre
            unit = unit if frame.map is None else unit @ frame.map.T
            twice = inverse(lengths(unit), rounding)
            twice[once == 0] = 0
            self.row_scale[rows], self.row_shift[rows] = once * twice, twice

    def __len__(self) -> int:
        return len(self.x)

    def read(self, rows: slice | NDArray[Any]) -> Floats:
        """Some of the rows of X, scaled so that their squares neither overflow nor underflow."""
        return scaled(self.x[rows], self.powers[rows])

    def cosines(self, directions: Floats) -> Callable[[slice | NDArray[Any]], Floats]:
        """A function that gives the products of some of the points with (k, dim) vectors: (rows, k)."""
        frame, directions = self.frame, directions.astype(self.x.dtype, copy=False)
        weights = directions if frame.map is None else directions @ frame.map  # (k, features)
        offset = directions @ frame.shift

        def of(rows: slice | NDArray[Any]) -> Floats:
            found: Floats = self.read(rows) @ weights.T
            found *= self.row_scale[rows, None]
            found -= self.row_shift[rows, None] * offset
            return found

        return of

    def sums(self, rows: slice | NDArray[Any], weights: Floats) -> NDArray[np.float64]:
        """Sums of some of the points with weights (rows, k): (k, dim)."""
        found = (weights * self.row_scale[rows, None]).T @ self.read(rows)  # (k, features)
        found = found if self.frame.map is None else found @ self.frame.map.T
        found = found - np.outer(weights.T @ self.row_shift[rows], self.frame.shift)
        return np.asarray(found, dtype=np.float64)

    def vectors(self, rows: slice | NDArray[Any]) -> Floats:
        """Some of the points, spelled out: (rows, dim)."""
        found = self.read(rows) * self.row_scale[rows, None]
        found = found if self.frame.map is None else found @ self.frame.map.T
        return found - self.row_shift[rows, None] * self.frame.shift


def chunks(x: Floats, width: int = 0, count: int | None = None) -> Iterator[slice]:
    """Slices of rows of some megabytes each, of X or of an array with ``width`` columns, if that is wider.

    They cover all rows of X, or the first ``count``.
    """
    step = max(1, CHUNK_BYTES // max(1, max(width, x.shape[1]) * x.dtype.itemsize))
    count = len(x) if count is None else count
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def measured(vectors: Floats) -> tuple[Floats, Floats, NDArray[np.int16]]:
    """Vectors (n, dim) of lengths that can be squared, their lengths (n,), and the powers of two that this took (n,).

    Vectors whose squares are neither too large nor too small for their type are returned as they are, with powers of 0.
    """
    powers, kind = np.zeros(len(vectors), dtype=np.int16), np.finfo(vectors.dtype)
    with np.errstate(over="ignore", under="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
    wild = ~((squares >= kind.tiny**0.5) & (squares <= kind.max**0.5))
    if wild.any():
        some = vectors[wild]
        powers[wild] = -np.frexp(np.maximum(some.max(1), -some.min(1)))[1]
        some = scaled(some, powers[wild])
        squares[wild] = np.einsum("ij,ij->i", some, some)
        vectors = scaled(vectors, powers)
    return vectors, np.sqrt(squares), powers


def lengths(vectors: Floats) -> Floats:
    """(n, dim) -> (n,), infinite where it is too large for the type."""
    _, length, powers = measured(vectors)
    with np.errstate(over="ignore", under="ignore"):
        found: Floats = np.ldexp(length, -powers)
    return found


def scaled(vectors: Floats, powers: NDArray[np.int16]) -> Floats:
    """Vectors (n, dim) times two to these powers (n,), in two steps, since one factor may be too large for the type."""
    if not powers.any():
        return vectors
    half, one = powers // 2, vectors.dtype.type(1)
    with np.errstate(under="ignore"):
        found: Floats = vectors * np.ldexp(one, half)[:, None]
        found *= np.ldexp(one, powers - half)[:, None]
    return found


def mild(matrix: Floats) -> NDArray[np.float64]:
    """A matrix, of which only the direction counts, times a power of two that makes its largest entry about one."""
    wide = matrix.astype(np.float64)
    found: NDArray[np.float64] = np.ldexp(wide, -np.frexp(np.abs(wide).max())[1])
    return found


def inverse(length: Floats, least: float | Floats = TINY) -> Floats:
    """1 / length, and 0 where it is no more than the least that counts."""
    return np.divide(1, length, out=np.zeros_like(length), where=length > least)


def unit(vectors: Floats, least: float | Floats = TINY) -> Floats:
    """Vectors (n, dim) of length 1, and 0 where they are no longer than the least that counts."""
    part, length, _ = measured(vectors)
    return part * np.where(lengths(vectors) > least, inverse(length, 0), 0)[:, None]


@dataclass(frozen=True)
class Clusters:
    """Clusters of unit vectors; the first belong to the classes, in their order, the others to no class.

    Attributes:
        directions: (classes + others, dim) unit vectors, in the space that cosines are taken in.
        classes: how many are those of classes.
        scale: of the cosines in the soft labels.
        removed: (removed, dim) orthonormal directions that this space lacks, if it is the TAC space; else empty.
        means: (classes, dim) the classes' sums of points, in the space of the points.
    """

    directions: Floats
    classes: int
    scale: float
    removed: Floats
    means: NDArray[np.float64]

    def cosines(self, points: Points) -> Callable[[slice | NDArray[Any]], Floats]:
        """A function that gives the cosines of some of the points with all clusters: (rows, clusters)."""
        count = len(self.directions)
        if not len(self.removed):
            return points.cosines(self.directions)
        products = points.cosines(np.concatenate([self.directions, self.removed]))

        def of(rows: slice | NDArray[Any]) -> Floats:
            found = products(rows)
            left = 1 - np.square(found[:, count:]).sum(1)  # of the unit length of a point
            return found[:, :count] * inverse(np.sqrt(np.maximum(left, 0)))[:, None]

        return of


Space = Callable[[NDArray[np.float64]], tuple[Floats, Floats]]  # class means -> directions, and what is removed


def plain_space(means: NDArray[np.float64]) -> tuple[Floats, Floats]:
    """The space of the points itself: nothing is removed."""
    return unit(means), means[:0]


@dataclass(frozen=True)
class Task:
    """Points, their labels and the sums of each class: the input of :func:`cluster`.

    Attributes:
        points: all of them.
        labels: (n,) int: the class of a point, `FREE` if it is unlabelled, `NONE` if it is known to be of none.
        classes: how many.
        total: (classes, dim) sums of the labelled points of each class.
    """

    points: Points
    labels: NDArray[np.int64]
    classes: int
    total: NDArray[np.float64]

    @classmethod
    def of(cls, points: Points, labels: NDArray[np.int64], classes: int) -> Task:
        labelled, dim = np.flatnonzero(labels >= 0), len(points.frame.shift)
        total = np.zeros((classes, dim))
        for part in chunks(points.x, dim, len(labelled)):
            rows = labelled[part]
            members = csr_array((np.ones(len(rows)), labels[rows], np.arange(len(rows) + 1)), (len(rows), classes))
            total += members.T @ points.vectors(rows)
        rounding = ROUNDING * np.finfo(points.x.dtype).eps * np.bincount(labels[labelled], minlength=classes)
        total[lengths(total) <= rounding] = 0  # rows that point in opposite directions
        return cls(points, labels, classes, total)


def cluster(
    task: Task, iterations: int, scale: float | None, others: int = 0, space: Space = plain_space
) -> tuple[Clusters, int]:
    """Refine the class means with the free points, ``iterations`` times or until no point changes its cluster.

    Args:
        task: what is known.
        iterations: the most refinements; with ``others``, the most once they have joined.
        scale: of the cosines in the soft labels; None sets it so that a point's best cluster is `GAP` ahead on average.
        others: clusters that belong to no class. They start at the points that are farthest from all others, after
            refinements in which points that are far from all classes count little.
        space: in which the cosines are taken.

    Returns:
        The clusters, and the number of refinements.
    """
    means, rest, free = task.total, task.total[:0], task.labels == FREE
    current = _clusters(means, rest, space, 1.0)
    found = _pass(task, current, summed=False)
    current = replace(current, scale=scale or _scale(found.gap))
    done, before, most = 0, None, iterations + (WITHOUT_OTHERS if others and iterations else 0)
    while done < most:
        gate = None
        if others and done < WITHOUT_OTHERS:
            gate = otsu(found.best[free])
        elif others and not len(rest):
            rest, before = farthest(task, current, others), None
            current = _clusters(means, rest, space, current.scale)
        found = _pass(task, current, gate)
        done += 1
        means, rest = task.total + found.sums[: task.classes], found.sums[task.classes :]
        current = _clusters(means, rest, space, scale or _scale(found.gap))
        if before is not None and np.array_equal(found.chosen, before):
            break
        before = found.chosen
    return current, done


def _clusters(means: NDArray[np.float64], rest: NDArray[np.float64], space: Space, scale: float) -> Clusters:
    directions, removed = space(means)
    if len(rest) and len(removed):
        rest = rest - (rest @ removed.T) @ removed
    return Clusters(np.concatenate([directions, unit(rest)]), len(means), scale, removed, means)


def _scale(gap: float) -> float:
    return GAP / gap if gap > TINY else GAP


class _Pass(NamedTuple):
    sums: NDArray[np.float64]  # (clusters, dim) of the free points, by their soft labels
    gap: float  # between the two best cosines of a free point, on average
    best: Floats  # (n,) the best cosine of a point
    chosen: NDArray[np.int32]  # (n,) and with which cluster


def _pass(task: Task, clusters: Clusters, gate: float | None = None, summed: bool = True) -> _Pass:
    """Label all points softly and sum them per cluster; points whose best cosine is below ``gate`` count little."""
    points, labels, count = task.points, task.labels, len(clusters.directions)
    cosines = clusters.cosines(points)
    sums = np.zeros((count, task.total.shape[1]))
    gap, best, chosen = 0.0, np.empty(len(points), dtype=points.x.dtype), np.empty(len(points), dtype=np.int32)
    for rows in chunks(points.x, count):
        found, free, none = cosines(rows), labels[rows] == FREE, labels[rows] == NONE
        chosen[rows] = found.argmax(1)
        best[rows] = found.max(1)
        if count > 1:
            gap += float((best[rows] - np.partition(found, -2, axis=1)[:, -2])[free].sum(dtype=np.float64))
        if summed:
            if count > clusters.classes:
                found[none, : clusters.classes] = -np.inf
                free = free | none
            weights = softmax(clusters.scale * found)
            if gate is not None:
                weights *= expit(clusters.scale * (best[rows, None] - gate))
            weights[~free] = 0
            sums += points.sums(rows, weights)
    return _Pass(sums, gap / max(1, int((labels == FREE).sum())), best, chosen)


def otsu(values: Floats) -> float | None:
    """The cut that leaves the least variance on its two sides (Otsu 1979); None if there is nothing to cut.

    >>> otsu(np.array([1.0, 1.1, 3.0, 3.2]))
    2.05
    """
    if len(values) < 2:
        return None
    ordered = np.sort(values).astype(np.float64)
    below = np.arange(1, len(ordered))
    total = np.cumsum(ordered)
    means = total[:-1] / below, (total[-1] - total[:-1]) / below[::-1]
    cut = int((below * below[::-1] * (means[0] - means[1]) ** 2).argmax())
    return float(ordered[cut] + ordered[cut + 1]) / 2


def farthest(task: Task, clusters: Clusters, count: int) -> NDArray[np.float64]:
    """So many points (count, dim), each the farthest from all clusters and those before it.

    Up to half of them are points known to be of no class, if there are any.
    """
    points, none = task.points, task.labels == NONE
    nearest = np.full(len(points), np.inf, dtype=points.x.dtype)
    cosines = clusters.cosines(points)
    for rows in chunks(points.x, len(clusters.directions)):
        nearest[rows] = cosines(rows).max(1)
    nearest[(task.labels >= 0) | (points.row_shift == 0)] = np.inf
    known = np.where(none, nearest, np.inf)
    found: list[Floats] = []
    while len(found) < count:
        pick = int(known.argmin() if len(found) < count // 2 and np.isfinite(known).any() else nearest.argmin())
        if not np.isfinite(nearest[pick]):
            break
        vector = points.vectors(slice(pick, pick + 1))
        found.append(vector[0])
        nearest[pick] = known[pick] = np.inf
        products = points.cosines(vector)
        for rows in chunks(points.x):
            near = products(rows)[:, 0]
            np.maximum(nearest[rows], near, out=nearest[rows])
            np.maximum(known[rows], near, out=known[rows])
    return np.array(found, dtype=np.float64).reshape(len(found), task.total.shape[1])


def leave_one_out(task: Task, clusters: Clusters) -> Iterator[Floats]:
    """Yield the cosines of labelled points with all clusters (rows, clusters), each left out of its class mean."""
    points, removed = task.points, clusters.removed
    cosines = clusters.cosines(points)
    labelled = np.flatnonzero(task.labels >= 0)
    for part in chunks(points.x, max(task.total.shape[1], len(clusters.directions)), len(labelled)):
        rows = labelled[part]
        found, own = cosines(rows), task.labels[rows]
        vectors = points.vectors(rows).astype(np.float64)
        means = clusters.means[own] - vectors
        if len(removed):
            vectors, means = (part - (part @ removed.T) @ removed for part in (vectors, means))
        found[np.arange(len(rows)), own] = np.einsum("ij,ij->i", unit(vectors), unit(means))
        yield found


def softmax(logits: Floats) -> Floats:
    logits = logits - logits.max(1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(1, keepdims=True)
    return logits
