"""How accurate a labelling is: each given label is hidden once and predicted from the others."""

from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from ..estimator.classifier import TACClassifier

FOLDS = 5
CALIBRATED_FROM = 40  # given labels from which on it is worth comparing confidence with truth
SUSPICIOUS = 0.8  # confidence in another class from which on a given label looks wrong


@dataclass(frozen=True)
class Hidden:
    """A given label that was hidden, and what was predicted instead.

    Attributes:
        row: of the image among the vectors.
        label: that was given.
        found: that was predicted.
        confidence: of the prediction.
        is_none: whether the image was called none of these, which is wrong.
    """

    row: int
    label: str
    found: str
    confidence: float
    is_none: bool = False

    @property
    def right(self) -> bool:
        return self.found == self.label and not self.is_none


@dataclass(frozen=True)
class Estimate:
    """Accuracy by cross-validation over the given labels: each is hidden once and predicted from the others.

    Attributes:
        hidden: one entry per label that was hidden.
        baseline: how many of them logistic regression on the other given labels gets right.
        single: classes with one label, which cannot be hidden: nothing is known about them.
    """

    hidden: tuple[Hidden, ...]
    baseline: int
    single: tuple[str, ...] = ()

    @property
    def right(self) -> int:
        """Hidden labels that were predicted correctly; an image that was called none of these is not."""
        return sum(one.right for one in self.hidden)

    @property
    def total(self) -> int:
        return len(self.hidden)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the accuracy, 95 %, by Wilson's score."""
        return wilson(self.right, self.total)

    @property
    def calibration(self) -> tuple[tuple[float, float, int], ...]:
        """(confidence, share that was right, how many), by fifths of the confidence; empty for few labels."""
        if self.total < CALIBRATED_FROM:
            return ()
        parts = np.array_split(np.array(sorted(self.hidden, key=lambda one: one.confidence), dtype=object), 5)
        return tuple(
            (float(np.mean([one.confidence for one in part])), float(np.mean([one.right for one in part])), len(part))
            for part in parts
        )

    def by_class(self) -> dict[str, tuple[int, int, int]]:
        """For each class: how many of its hidden labels were found, of how many, and how many images were called so."""
        given = Counter(one.label for one in self.hidden)
        found = Counter(one.found for one in self.hidden if not one.is_none)
        right = Counter(one.label for one in self.hidden if one.right)
        return {label: (right[label], given[label], found[label]) for label in sorted(given)}

    def confusions(self) -> list[tuple[str, str, int]]:
        """(given, predicted, how often) of all mistakes, most frequent first; "" stands for none of these."""
        found = Counter((one.label, "" if one.is_none else one.found) for one in self.hidden if not one.right)
        return sorted(((*pair, count) for pair, count in found.items()), key=lambda entry: (-entry[2], entry))

    def suspects(self) -> list[Hidden]:
        """Given labels that look wrong: hidden, another class was predicted with much confidence; surest first."""
        wrong = [one for one in self.hidden if one.found != one.label and one.confidence >= SUSPICIOUS]
        return sorted(wrong, key=lambda one: -one.confidence)


def cross_validate(
    model: TACClassifier, vectors: NDArray[np.float32], given: NDArray[np.object_], none: NDArray[np.bool_]
) -> Estimate | None:
    """Hide the given labels a fold at a time and predict them; None if no class has two.

    A class with a single label keeps it: it takes part in the competition, but says nothing about the accuracy.
    """
    counts = Counter(given[given != ""].tolist())
    single = tuple(sorted(label for label, count in counts.items() if count < 2))
    rows = np.flatnonzero(np.isin(given, [label for label, count in counts.items() if count > 1]) & (given != ""))
    if not len(rows):
        return None
    labels = given[rows].astype(str)
    folds = StratifiedKFold(
        min(FOLDS, min(count for count in counts.values() if count > 1)), shuffle=True, random_state=0
    )
    hidden, baseline = [], 0
    for _, part in folds.split(rows, labels):
        known = given.copy()
        known[rows[part]] = ""
        other = copy(model).refit(known, none=none if none.any() else None, check=False)
        flagged = other.is_none(vectors[rows[part]])
        for row, chances, beyond in zip(rows[part], other.label_distributions_[rows[part]], flagged, strict=True):
            best = int(chances.argmax())
            hidden.append(
                Hidden(int(row), str(given[row]), str(other.classes_[best]), float(chances[best]), bool(beyond))
            )
        baseline += int((_logistic(vectors, known, rows[part]) == labels[part]).sum())
    return Estimate(tuple(sorted(hidden, key=lambda one: one.row)), baseline, single)


def _logistic(vectors: NDArray[np.float32], known: NDArray[np.object_], rows: NDArray[np.int64]) -> NDArray[np.str_]:
    """What logistic regression on the labelled rows says of others: unit vectors around the mean of these few rows."""
    labelled = known != ""
    mean = vectors[labelled].mean(0)

    def unit(part: NDArray[np.float32]) -> NDArray[np.float32]:
        centred = part - mean
        found: NDArray[np.float32] = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
        return found

    model = LogisticRegression(C=10, max_iter=200).fit(unit(vectors[labelled]), known[labelled].astype(str))
    return np.asarray(model.predict(unit(vectors[rows])))


def wilson(right: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """The 95 % interval of a share by Wilson's score, which is also valid for few samples.

    >>> low, high = wilson(18, 20)
    >>> f"{low:.3f} to {high:.3f}"
    '0.699 to 0.972'
    """
    z = float(ndtri((1 + level) / 2))
    share, extra = right / total, z * z / total
    middle = (share + extra / 2) / (1 + extra)
    half = z * ((share * (1 - share) / total + extra / total / 4) ** 0.5) / (1 + extra)
    return max(0.0, middle - half), min(1.0, middle + half)
