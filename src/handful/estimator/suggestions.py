"""Which rows to label next: those that stand for many rows of which the estimator is unsure.

A label tells most about rows that are like its own. So the choice is a covering: the similarity of two rows is
exp(4 (cosine - 1)), each row counts by its doubt (how little the best class leads, and a little of it for every row),
and rows are taken one after another so that the similarity of all rows to the nearest labelled or chosen one grows
most. So outliers, which stand for nobody, are left; of a cluster of doubtful rows the middle is taken, and only once;
and rows near a label count less. Rows that look foreign to all classes count less, too, both as rows that are stood
for and as rows to label.

The gain of a row can only shrink while others are chosen (the covering is submodular), so that only the first in line
has to be computed again. Of very many rows a few thousand take part, drawn evenly from all by doubt.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
Rows = NDArray[np.int64]

SHARPNESS = 4.0  # of the similarity
EVERY = 0.2  # what a row counts without any doubt; 1 is what full doubt adds
FOREIGN = 0.1  # none rate below which a row counts less
MOST = 2000  # rows that take part
CELLS = 1 << 20  # soft labels that are read at a time


def suggest(vectors: Floats, soft: Floats, rates: Floats | None, labelled: Rows, count: int) -> Rows:
    """Choose rows to label next, most useful first; nothing is random, and the order of rows does not matter.

    Args:
        vectors: (rows, dim) unit vectors, as ``TACClassifier.unit_vectors`` gives them.
        soft: (rows, classes) probabilities.
        rates: (rows,) ``TACClassifier.none_score``; None if no row can be of no class.
        labelled: rows that have a label, or are known to be of no class.
        count: how many to choose, at most.
    """
    free = np.ones(len(vectors), dtype=bool)
    free[labelled] = False
    rows = np.flatnonzero(free)
    if not len(rows) or count < 1:
        return rows[:0]
    known = np.ones(len(vectors)) if rates is None else np.minimum(1, rates / FOREIGN) + 1e-6
    rows, weights = _drawn(rows, (doubt(soft, rows) + EVERY) * known[rows], max(MOST, 2 * count))
    some = vectors[rows].astype(np.float32)
    alike = _similarity(some, some)
    nearest = np.zeros(len(rows), dtype=np.float32)
    for start in range(0, len(labelled), MOST):
        part = vectors[labelled[start : start + MOST]].astype(np.float32)
        np.maximum(nearest, _similarity(some, part).max(1), out=nearest)
    return rows[_cover(alike, nearest, weights.astype(np.float32), known[rows], count)]


def doubt(soft: Floats, rows: Rows) -> Floats:
    """How little the best class leads the second, from 0 to 1, for some rows."""
    found = np.zeros(len(rows))
    if soft.shape[1] < 2:
        return found
    step = max(1, CELLS // soft.shape[1])  # there may be thousands of classes: not all rows are copied at once
    for start in range(0, len(rows), step):
        part = soft[rows[start : start + step]]
        every, best = np.arange(len(part)), part.argmax(1)
        first = part[every, best]
        part[every, best] = -1
        found[start : start + step] = 1 - (first - part.max(1))
    return found


def _similarity(one: Floats, other: Floats) -> Floats:
    cosines = one @ other.T
    cosines -= 1
    cosines *= SHARPNESS
    return np.asarray(np.exp(cosines, out=cosines))


def _drawn(rows: Rows, weights: Floats, most: int) -> tuple[Rows, Floats]:
    """At most so many rows, at even steps of the sum of the weights, heaviest first; each counts by its steps."""
    if len(rows) <= most:
        return rows, weights
    order = np.argsort(-weights, kind="stable")
    total = np.cumsum(weights[order])
    steps = (np.arange(most) + 0.5) * (total[-1] / most)
    places, counts = np.unique(np.searchsorted(total, steps), return_counts=True)
    return rows[order[places]], counts.astype(np.float64)


def _cover(alike: Floats, nearest: Floats, weights: Floats, worth: Floats, count: int) -> list[int]:
    """Greedily, columns of ``alike`` that raise the weighted sum of each row's largest value most, by their worth."""
    gains = (weights @ np.maximum(alike - nearest[:, None], 0)) * worth
    waiting = [(-float(gain), place) for place, gain in enumerate(gains)]
    heapq.heapify(waiting)
    chosen: list[int] = []
    while waiting and len(chosen) < count:
        _, place = heapq.heappop(waiting)
        gain = float(weights @ np.maximum(alike[place] - nearest, 0)) * float(worth[place])
        if waiting and -gain > waiting[0][0]:
            heapq.heappush(waiting, (-gain, place))
            continue
        chosen.append(place)
        np.maximum(nearest, alike[place], out=nearest)
    return chosen
