"""Where images are among the others, without any label: likeness, groups, near-duplicates, a map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

SEEN = 20_000  # images by which axes and groups are made; others join them
LAID_OUT = 10_000  # the same for the map
DIMENSIONS = 64
BLOCK = 1 << 22  # pairs that are compared at a time
MOST_GROUPS, ROUNDS = 64, 20
# Cosine of two vectors from which on two images may show the same, for a small set and for a large one, where it would
# take too long to look at all of these; how many of an image's nearest are looked at.
MAY_BE_SAME, MAY_BE_SAME_OF_MANY, LOOKED_AT = 0.6, 0.85, 4
NEIGHBOURS, EPOCHS, REPELLED = 12, 200, 5  # of the map
SPREAD, CURVE = 1.577, 0.895  # the curve by which nearness in the plane falls off with distance: 1 / (1 + a d^(2 b))
Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Images grouped by likeness.

    Attributes:
        of: (n,) the group of each image, -1 for none; the largest is 0.
        typical: (n,) how near it is to the middle of its group, a cosine.
        sizes: (groups,)
    """

    of: Numbers
    typical: Floats
    sizes: Numbers


def in_common_axes(vectors: Floats) -> Floats:
    """Vectors (m, dim) as unit vectors around their mean, on their principal axes: (m, reduced)."""
    some = _even(len(vectors), SEEN)
    shift = _unit(vectors[some]).mean(0)
    sample = _unit(vectors[some]) - shift
    if vectors.shape[1] > DIMENSIONS:
        _, axes = np.linalg.eigh((sample.T @ sample).astype(np.float64))
        axes = np.ascontiguousarray(axes[:, ::-1][:, :DIMENSIONS]).astype(np.float32)
    else:
        axes = np.eye(vectors.shape[1], dtype=np.float32)
    found = np.empty((len(vectors), axes.shape[1]), dtype=np.float32)
    for start in range(0, len(vectors), 4096):
        found[start : start + 4096] = _unit((_unit(vectors[start : start + 4096]) - shift) @ axes)
    return found


def grouped(points: Floats, rows: Numbers, count: int) -> Groups:
    """Group points (m, reduced), which are the images ``rows`` of ``count``, by k-means on the sphere.

    The first middle is the point that is nearest to all others, each next one the farthest from those before: nothing
    is drawn at random.
    """
    number = int(np.clip((len(points) / 2) ** 0.5, 1, MOST_GROUPS))
    sample = points[_even(len(points), SEEN)]
    middles = [sample[(sample @ sample.mean(0)).argmax()]]
    nearest = sample @ middles[0]
    for _ in range(number - 1):
        # Not the very farthest, which is an outlier: of the farthest twentieth, the one with most others around it.
        far = np.argsort(nearest, kind="stable")[: max(1, len(sample) // 20)]
        middles.append(sample[far[(sample[far] @ sample[far].sum(0)).argmax()]])
        nearest = np.maximum(nearest, sample @ middles[-1])
    middle = np.stack(middles)
    for _ in range(ROUNDS):
        own = (sample @ middle.T).argmax(1)
        sums = np.zeros_like(middle)
        np.add.at(sums, own, sample)
        middle = np.where(np.abs(sums).sum(1, keepdims=True) > 0, _unit(sums), middle)
    cosines = points @ middle.T
    own, typical = cosines.argmax(1), cosines.max(1)
    sizes = np.bincount(own, minlength=number)
    order = np.argsort(-sizes, kind="stable")
    rank = np.empty(number, dtype=np.int64)
    rank[order] = np.arange(number)
    of, near = np.full(count, -1), np.full(count, -1, dtype=np.float32)
    of[rows], near[rows] = rank[own], typical
    return Groups(of, near, sizes[order][sizes[order] > 0])


def near_duplicates(
    points: Floats, rows: Numbers, groups: Groups, digests: list[bytes | None], same: Callable[[int, int], bool]
) -> list[list[int]]:
    """Sets of images that show the same: of the same content, or alike in their vectors and then in their pixels.

    Args:
        points: (m, reduced) unit vectors.
        rows: (m,) which images these are.
        groups: only images of the same group are compared.
        digests: of the contents, where they are known.
        same: whether two images show the same, by a look at both.
    """
    pairs: list[tuple[int, int]] = []
    first: dict[bytes, int] = {}
    for number, digest in enumerate(digests):
        if digest is not None and first.setdefault(digest, number) != number:
            pairs.append((first[digest], number))
    least = MAY_BE_SAME if len(points) <= SEEN else MAY_BE_SAME_OF_MANY
    for group in range(len(groups.sizes)):
        mine = np.flatnonzero(groups.of[rows] == group)
        if len(mine) < 2:
            continue
        near, cosines = _nearest(points[mine], points[mine], min(LOOKED_AT, len(mine) - 1), own=True)
        for place, rank in zip(*np.nonzero(cosines >= least), strict=True):
            one, other = int(rows[mine[place]]), int(rows[mine[near[place, rank]]])
            if (one < other or place not in near[near[place, rank]]) and same(one, other):
                pairs.append((one, other))
    return _sets(pairs)


def _sets(pairs: list[tuple[int, int]]) -> list[list[int]]:
    """Pairs -> sets of all that are connected, each sorted."""
    root: dict[int, int] = {}

    def find(one: int) -> int:
        while root.setdefault(one, one) != one:
            root[one] = root[root[one]]
            one = root[one]
        return one

    for one, other in pairs:
        low, high = sorted((find(one), find(other)))
        root[high] = low
    found: dict[int, list[int]] = {}
    for one in sorted(root):
        found.setdefault(find(one), []).append(one)
    return list(found.values())


def flat(points: Floats) -> Floats:
    """The two first axes of points (m, reduced), as a map that is there at once: (m, 2) from -1 to 1."""
    return _framed(np.pad(points, ((0, 0), (0, max(0, 2 - points.shape[1]))))[:, :2])


def spread_out(points: Floats, seed: int = 0) -> Floats:
    """A map (m, 2) on which neighbours stay neighbours, from -1 to 1.

    Neighbours attract and others repel each other, as in UMAP, from the two first axes on, all edges of an epoch at
    once. Of a large set a part is laid out, and the others are put among their nearest of it.
    """
    if len(points) < 5:
        return flat(points)
    some = _even(len(points), LAID_OUT)
    sample, rng = points[some], np.random.default_rng(seed)
    near, cosines = _nearest(sample, sample, min(NEIGHBOURS, len(sample) - 1), own=True)
    left, right, weight = _edges(near, cosines)
    place = 10 * flat(sample).astype(np.float64)
    place += rng.normal(scale=1e-3, size=place.shape)
    for epoch in range(EPOCHS):
        rate = 1 - epoch / EPOCHS
        move = np.zeros_like(place)
        apart = place[left] - place[right]
        square = (apart**2).sum(1)
        pull = -2 * SPREAD * CURVE * np.maximum(square, 1e-6) ** (CURVE - 1) / (1 + SPREAD * square**CURVE)
        _push(move, left, apart * (weight * pull)[:, None])
        _push(move, right, -apart * (weight * pull)[:, None])
        for _ in range(REPELLED):
            other = rng.integers(len(place), size=len(place))
            apart = place - place[other]
            square = (apart**2).sum(1)
            away = 2 * CURVE / ((0.001 + square) * (1 + SPREAD * square**CURVE))
            move += np.clip(apart * away[:, None], -4, 4)
        place += rate * np.clip(move, -4, 4) * 0.5
    found = np.empty((len(points), 2))
    found[some] = place
    rest = np.setdiff1d(np.arange(len(points)), some)
    if len(rest):
        near, cosines = _nearest(points[rest], sample, 5)
        share = np.maximum(cosines, 0) ** 8 + 1e-9
        share /= share.sum(1, keepdims=True)
        found[rest] = (place[near] * share[..., None]).sum(1) + rng.normal(scale=0.02, size=(len(rest), 2))
    return _framed(found)


def _edges(near: Numbers, cosines: Floats) -> tuple[Numbers, Numbers, NDArray[np.float64]]:
    """Neighbours (m, k) -> edges and their weights: 1 for the nearest, less for others, the larger of both ways."""
    distance = np.sqrt(np.maximum(2 - 2 * cosines.astype(np.float64), 0))
    beyond = distance - distance[:, :1]
    weight = np.exp(-beyond / np.maximum(beyond.mean(1, keepdims=True), 1e-6))
    count, width = near.shape
    one_way = coo_array((weight.ravel(), (np.repeat(np.arange(count), width), near.ravel())), (count, count)).tocsr()
    both = one_way.maximum(one_way.T).tocoo()
    upper = both.row < both.col
    return both.row[upper].astype(np.int64), both.col[upper].astype(np.int64), both.data[upper]


def _push(move: NDArray[np.float64], rows: Numbers, by: NDArray[np.float64]) -> None:
    for axis in (0, 1):
        move[:, axis] += np.bincount(rows, weights=np.clip(by[:, axis], -4, 4), minlength=len(move))


def _nearest(points: Floats, others: Floats, count: int, own: bool = False) -> tuple[Numbers, Floats]:
    """The nearest of others for each point, nearest first: (m, count) and their cosines."""
    near, cosines = np.empty((len(points), count), dtype=np.int64), np.empty((len(points), count), dtype=np.float32)
    step = max(1, BLOCK // max(1, len(others)))
    for start in range(0, len(points), step):
        part = points[start : start + step] @ others.T
        if own:
            part[np.arange(len(part)), np.arange(start, start + len(part))] = -2
        top = np.argpartition(-part, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(part, top, 1)
        order = np.argsort(-values, axis=1, kind="stable")
        near[start : start + step] = np.take_along_axis(top, order, 1)
        cosines[start : start + step] = np.take_along_axis(values, order, 1)
    return near, cosines


def _framed(place: NDArray[np.floating]) -> Floats:
    """Moved and scaled so that nearly all points lie between -1 and 1."""
    middle = np.quantile(place, [0.005, 0.995], axis=0).mean(0)
    reach = float(np.quantile(np.abs(place - middle).max(1), 0.99))
    found: Floats = np.clip((place - middle) / max(reach, 1e-9) * 0.95, -1.2, 1.2).astype(np.float32)
    return found


def _unit(vectors: Floats) -> Floats:
    found: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return found


def _even(count: int, most: int) -> Numbers:
    """At most so many numbers below ``count``, evenly spaced."""
    return (
        np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)) if count else np.zeros(0, int)
    )
