"""The label of one image, and how the result files show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DOUBTFUL = 0.6  # confidence below which a label is called doubtful
COLUMNS = ("path", "label", "confidence", "runner_up", "none_score", "is_none", "source")  # of the result files


@dataclass(frozen=True)
class Prediction:
    """The label of one image.

    Attributes:
        path: of the image, from the top of the images.
        label: given, or predicted.
        confidence: probability of the label, given that the image belongs to one of the classes.
        runner_up: the second most probable label.
        none_score: share of the images of the classes that look at least as foreign: small for "none of these".
        is_none: whether the score is at most the threshold.
        source: ``given`` or ``predicted``.
    """

    path: str
    label: str
    confidence: float
    runner_up: str
    none_score: float
    is_none: bool
    source: str


def two_best(chances: NDArray[Any]) -> NDArray[np.intp]:
    """The columns of the largest and the second largest of each row, the first of equals: (n, 2)."""
    found = np.empty((len(chances), 2), dtype=np.intp)
    found[:, 0] = chances.argmax(1)
    for start in range(0, len(chances), 1024):  # there may be thousands of classes: not all copied at once
        part = chances[start : start + 1024].copy()
        np.put_along_axis(part, found[start : start + 1024, :1], -1, axis=1)
        found[start : start + 1024, 1] = part.argmax(1)
    return found


def as_row(one: Prediction) -> dict[str, Any]:
    """A prediction as a row of the result files."""
    values = (one.path, one.label, round(one.confidence, 4), one.runner_up, round(one.none_score, 4), one.is_none)
    return dict(zip(COLUMNS, (*values, one.source), strict=True))
