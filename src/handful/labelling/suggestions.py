"""Which images to label next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Labelled(Protocol):
    """What is said of an image: :class:`.label.Prediction`."""

    @property
    def path(self) -> str: ...
    @property
    def confidence(self) -> float: ...
    @property
    def none_score(self) -> float: ...
    @property
    def is_none(self) -> bool: ...
    @property
    def source(self) -> str: ...


def suggest(predictions: Sequence[Labelled], vectors: NDArray[np.float32], threshold: float, count: int) -> list[str]:
    """Choose images to label next: uncertain ones that differ from one another.

    Among the most uncertain images, each next one is the farthest from all that are labelled or already chosen, so that
    the new labels are as informative as possible.
    """
    open_rows = [row for row, one in enumerate(predictions) if one.source == "predicted"]
    labelled = [row for row, one in enumerate(predictions) if one.source == "given"]
    doubt = np.array([_doubt(predictions[row], threshold) for row in open_rows])
    picked = choose(doubt, vectors[open_rows], vectors[labelled], count)
    return [predictions[open_rows[place]].path for place in picked]


def choose(
    doubt: NDArray[np.floating], vectors: NDArray[np.float32], labelled: NDArray[np.float32], count: int
) -> list[int]:
    """Choose rows by their doubt (n,) and unit vectors (n, dim), given the vectors of labelled rows (m, dim)."""
    if not len(doubt) or count < 1:
        return []
    pool = np.argsort(-doubt, kind="stable")[: max(20 * count, 100)]
    near = vectors[pool]
    nearest = (near @ labelled.T).max(1) if len(labelled) else np.full(len(pool), -1.0)
    chosen: list[int] = []
    while len(chosen) < min(count, len(pool)):
        pick = int(nearest.argmin())
        chosen.append(int(pool[pick]))
        nearest = np.maximum(nearest, near @ near[pick])
        nearest[pick] = np.inf
    return chosen


def _doubt(one: Labelled, threshold: float) -> float:
    """Uncertainty from 0 to 1: highest if two classes are equally probable or ``none_score`` is at its threshold."""
    if one.is_none:
        return one.none_score / max(threshold, 1e-9)
    return max(threshold / max(one.none_score, threshold, 1e-9), 1 - one.confidence)
