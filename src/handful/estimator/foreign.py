"""None of these: how foreign a row is to all classes, as a rate.

The score of a row is its energy, the log-sum-exp of its cosines with the class means in the half-whitened space, plus
how often a random walk from the labelled rows meets it, both standardised. Rows known to be of no class subtract what
they explain better, near them. To say what a score means, labels are left out in turn: the rank of a left-out label
among the unlabelled rows, scored without it, says how foreign an image of the classes may look. The rate of a row is
the share of left-out labels that rank at least as foreign, each counted as its class has rows: labels are often spread
evenly over classes that are not even, and rows of a large one look more foreign. It means the same in every task: a
threshold of 0.1 flags about a tenth of the images of the classes, whatever the embedder.

How many rows are of no class follows from the mean of those ranks. It is 1/2 if there are none; each share p of them
lowers it by p (a - 1/2), where a is how often such a row looks more foreign than one of the classes. What a is, every
class says of itself: the energy of its labels without their own class is that of rows of no class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp

from .confidence import folds
from .refinement import CELLS, class_sums
from .rows import Floats, unit
from .space import Projection, Rows, Space, View, evenly

ENERGY, LOCAL = 5.0, 10.0  # sharpness of the energy, and of what known rows of no class explain
KNOWN = 0.5  # weight of these
SURE = 1.0  # standard errors by which labels must rank lower than other rows for there to be rows of no class
SHARES = np.linspace(0, 0.99, 100)  # of rows of no class that are considered, all alike beforehand
BANDWIDTH = 0.3  # of the smoothed share of labels, in log-odds of their ranks
FURTHER = 0.5  # how far rows are drawn towards their neighbours here
GRID = 512


@dataclass(frozen=True)
class Judge:
    """Rows -> how foreign they are.

    Attributes:
        projection: of the rows.
        scales: (reduced,) the half-whitening.
        means: (folds, classes, reduced) unit vectors.
        met: (anchors, folds) by walks from the labels.
        centres, spreads: (2, folds) of energies and walks, over unlabelled rows.
        none, none_met: (known rows, reduced) and (anchors, 1) of rows known to be of no class.
        scores, ranks: (grid,) of unlabelled rows, for the rank of a score.
        labels: ranks of the left-out labels; empty if there are none, then all rows count as if of the classes.
        weights: of these, by the sizes of their classes; 1 in all.
        seen, seen_error: how often a row of no class looks more foreign than one of the classes; its standard error.
    """

    projection: Projection
    scales: Floats
    means: Floats
    met: Floats
    centres: Floats
    spreads: Floats
    none: Floats
    none_met: Floats
    scores: Floats
    ranks: Floats
    labels: Floats
    weights: Floats
    seen: float = 0.5
    seen_error: float = 0.0

    def each(self, view: View) -> Floats:
        """(n, folds): the score of each row without the labels of each fold."""
        energies, walks = self.parts(view)
        found: Floats = -(energies - self.centres[0]) / self.spreads[0] - (walks - self.centres[1]) / self.spreads[1]
        if len(self.none):
            found += KNOWN * self._explained(view)
        return found

    def parts(self, view: View) -> tuple[Floats, Floats]:
        """Energies and walks, (n, folds) each."""
        count, classes, width = self.means.shape
        rows = half_white(self.projection, view, self.scales)
        cosines = (rows @ self.means.reshape(-1, width).T).reshape(len(rows), count, classes)
        walks = np.log(view.spread(self.met) + 1e-6 * self.met.max(0, initial=0) + 1e-30)
        return logsumexp(ENERGY * cosines, axis=2), walks

    def _explained(self, view: View) -> Floats:
        """How much better rows of no class explain a row than the classes do, (n, folds); at least 0."""
        count, classes, width = self.means.shape
        rows = half_white(self.projection, view, self.scales)
        nearest = (rows @ self.means.reshape(-1, width).T).reshape(len(rows), count, classes).max(2)
        met = view.spread(self.met) + 1e-6 * self.met.max(0, initial=0) + 1e-30
        found: Floats = np.logaddexp(0, LOCAL * ((rows @ self.none.T).max(1)[:, None] - nearest))
        found += np.log1p(view.spread(self.none_met) / met)
        return found

    def rate(self, view: View) -> NDArray[np.float64]:
        """(n,) from 0 to 1: the share of images of the classes that look at least as foreign."""
        rank = np.interp(self.each(view).mean(1), self.scores, self.ranks)
        rank[view.blank] = 1
        if not len(self.labels):
            return np.asarray(1 - rank)
        width = BANDWIDTH * max(float(np.std(_odds(self.labels))), 0.5) * len(self.labels) ** -0.2
        grid = np.linspace(0, 1, GRID)
        shares = self.weights @ expit((_odds(self.labels)[:, None] - _odds(grid)) / width)
        shares /= max(float(self.weights.sum()), 1e-300)  # of a file, they may be anything
        found: NDArray[np.float64] = np.interp(rank, grid, shares)
        found[view.blank] = 0
        return found

    @property
    def many(self) -> float:
        """How many left-out labels there are, by weight."""
        return 1 / float((self.weights**2).sum())

    @property
    def excess(self) -> float:
        """By how many standard errors labels rank lower than unlabelled rows: a sign of rows of no class."""
        return float((0.5 - self.weights @ self.labels) * (12 * self.many) ** 0.5) if len(self.labels) else 0.0

    @property
    def any(self) -> bool:
        """Whether there are rows of no class."""
        return self.excess > SURE

    def chances(self) -> NDArray[np.float64]:
        """How probable each of `SHARES` is, by the mean rank of the left-out labels."""
        if not len(self.labels):
            return np.asarray(SHARES == 0, dtype=np.float64)
        lower = max(self.seen - 0.5, 0.0)
        deviation = ((1 / 12) / self.many + (SHARES * self.seen_error) ** 2) ** 0.5
        mean = self.weights @ self.labels
        found = np.exp(-0.5 * ((0.5 - mean - SHARES * lower) / deviation) ** 2) / deviation + 1e-300
        return np.asarray(found / found.sum())

    def share(self) -> float:
        """The share of the unlabelled rows that are of no class, expected."""
        return float(SHARES @ self.chances())

    def shares(self, level: float = 0.95) -> tuple[float, float]:
        """Between which shares it lies with this probability."""
        below = np.cumsum(self.chances())
        low, high = SHARES[np.searchsorted(below, [(1 - level) / 2, (1 + level) / 2]).clip(0, len(SHARES) - 1)]
        return float(low), float(high)


def judge(space: Space, labelled: Rows, labels: NDArray[np.int64], sizes: NDArray[np.float64], none: Rows) -> Judge:
    """Learn from the labelled rows, and those known to be of no class, how foreign a row is.

    Args:
        space, labelled, labels, none: as in a task.
        sizes: (classes,) of the classes, up to a factor.
    """
    classes = len(sizes)
    fold, count = folds(space, labelled, labels)
    count = max(1, count)
    deviation = space.projection.anchors.std(0) if len(space.core) else np.ones(space.view.smoothed.shape[1])
    scales = np.maximum(deviation, 1e-3 * max(float(deviation.max()), 1e-12)) ** -0.5
    scales = (scales / scales.max()).astype(space.projection.anchors.dtype)
    rows = half_white(space.projection, space.view.rows(labelled), scales)
    kept = [fold != number for number in range(count)]
    means = np.stack([unit(class_sums(rows[keep], labels[keep], classes)).astype(rows.dtype) for keep in kept])
    column = np.where(fold < 0, count, fold)
    met = space.walked(labelled, column, count + 1)
    met = met.sum(1, keepdims=True) - met[:, :count] if count > 1 else met.sum(1, keepdims=True)
    free = space.core[~np.isin(space.core, np.concatenate([labelled, none]))]
    free = evenly(free, max(1, CELLS // (count * classes)))
    view = space.view.rows(free)
    known = half_white(space.projection, space.view.rows(none), scales)
    none_met = space.walked(none, np.zeros(len(none), dtype=np.int64), 1)
    start = Judge(
        space.projection, scales, means, met, np.zeros((2, count)), np.ones((2, count)), known, none_met,
        np.zeros(2), np.array([0.0, 1.0]), np.zeros(0), np.zeros(0),
    )  # fmt: skip
    if not len(free):
        return start
    parts = start.parts(view)
    centres = np.stack([part.mean(0) for part in parts])
    spreads = np.stack([np.maximum(part.std(0), 1e-9) for part in parts])
    ready = replace(start, centres=centres, spreads=spreads)
    each = ready.each(view)
    scores, each = np.quantile(each.mean(1), np.linspace(0, 1, GRID)), np.sort(each, axis=0)
    ranks, cosines = [], []
    out = [evenly(np.flatnonzero(fold == number), max(1, CELLS // (count * classes))) for number in range(count)]
    for number, left in enumerate(out):  # how foreign left-out labels look, among the unlabelled rows of the same fold
        looks = ready.each(space.view.rows(labelled[left]))[:, number]
        ranks.append(np.searchsorted(each[:, number], looks) + 0.5)
        cosines.append(rows[left] @ means[number].T)
    ranked = np.concatenate(ranks) / (len(free) + 1)
    who = labels[np.concatenate(out)]
    seen, error = _seen(np.concatenate(cosines), who)
    weights = (sizes / np.maximum(np.bincount(who, minlength=classes), 1))[who]
    weights /= max(weights.sum(), 1e-300)
    return replace(
        ready, scores=scores, ranks=np.linspace(0, 1, GRID), labels=ranked, weights=weights, seen=seen, seen_error=error
    )


def _seen(cosines: Floats, labels: NDArray[np.int64]) -> tuple[float, float]:
    """How often a row looks more foreign without its class than others do with theirs, and the standard error.

    Args:
        cosines: (rows, classes) of left-out labels with the class means.
        labels: (rows,) their classes.
    """
    count, classes = cosines.shape
    if not count or classes < 2:
        return 0.5, 0.0
    inside = np.sort(logsumexp(ENERGY * cosines, axis=1))
    others = np.where(np.arange(classes) == labels[:, None], -np.inf, ENERGY * cosines)
    outside = logsumexp(others, axis=1) + np.log(classes / (classes - 1))
    below = (np.searchsorted(inside, outside, "left") + np.searchsorted(inside, outside, "right")) / (2 * count)
    shots = np.bincount(labels, minlength=classes)
    by_class = (np.bincount(labels, 1 - below, minlength=classes) / np.maximum(shots, 1))[shots > 0]
    return float(by_class.mean()), float(by_class.std() / len(by_class) ** 0.5)


def half_white(projection: Projection, view: View, scales: Floats) -> Floats:
    """Unit vectors (n, reduced), half-whitened, and drawn further towards their neighbours than for the classes."""
    rows, more = (
        view.smoothed.astype(scales.dtype),
        max(0.0, (FURTHER - projection.smoothing) / (1 - projection.smoothing)),
    )
    if projection.smoothing and view.near.shape[1]:
        rows = (1 - more) * rows + more * projection.mean_of(view.near)
    return unit(rows * scales)


def _odds(ranks: Floats) -> Floats:
    found: Floats = logit(np.clip(ranks, 1e-4, 1 - 1e-4))
    return found
