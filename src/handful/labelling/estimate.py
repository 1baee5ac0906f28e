"""How accurate a labelling is: each given label is hidden once and predicted from the others."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.model_selection import StratifiedKFold

from ..estimator.classifier import TACClassifier

FOLDS = 5
CALIBRATED_FROM = 40  # given labels from which on it is worth comparing confidence with truth


@dataclass(frozen=True)
class Estimate:
    """Accuracy by cross-validation over the given labels: each is hidden once and predicted from the others.

    Attributes:
        right, total: hidden labels that were predicted correctly, and all.
        interval: 95 %, by Wilson's score.
        calibration: (confidence, share that was right, how many), by fifths of the confidence; empty for few labels.
    """

    right: int
    total: int
    interval: tuple[float, float]
    calibration: tuple[tuple[float, float, int], ...]


def cross_validate(
    model: TACClassifier, vectors: NDArray[np.float32], given: NDArray[np.object_], none: NDArray[np.bool_]
) -> Estimate | None:
    """Hide the given labels a fold at a time, and count how many are predicted correctly."""
    rows = np.flatnonzero(given != "")
    labels = given[rows].astype(str)
    fewest = min(Counter(labels).values())
    if fewest < 2:
        return None
    right, sure = np.zeros(len(rows), dtype=bool), np.zeros(len(rows))
    folds = StratifiedKFold(min(FOLDS, fewest), shuffle=True, random_state=0)
    for _, hidden in folds.split(rows, labels):
        known = given.copy()
        known[rows[hidden]] = ""
        other = type(model)(**model.get_params()).fit(vectors, known, none=none if none.any() else None)
        chances = other.label_distributions_[rows[hidden]]
        right[hidden] = other.classes_[chances.argmax(1)] == labels[hidden]
        sure[hidden] = chances.max(1)
    return Estimate(int(right.sum()), len(rows), wilson(int(right.sum()), len(rows)), _calibration(right, sure))


def _calibration(right: NDArray[np.bool_], sure: NDArray[np.float64]) -> tuple[tuple[float, float, int], ...]:
    if len(right) < CALIBRATED_FROM:
        return ()
    parts = np.array_split(np.argsort(sure, kind="stable"), 5)
    return tuple((float(sure[part].mean()), float(right[part].mean()), len(part)) for part in parts)


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
