"""Predictions for all images of a set from the labels of some, again and again as the labels change."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from ..estimator.classifier import TACClassifier
from ..estimator.head import Head
from .book import FREE, NONE, Ids

HALVES = 4  # times that the labels are halved to see what half of them are worth
MOST_NONE = 3.0  # times the share of "none of these" among the labels that it may be among the others
USUAL_SLOPE, USUAL_WORTH = 0.4, 40.0  # log-odds of the accuracy for e times the labels; worth so many hidden labels
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Found:
    """What a model says of images, one entry each; nothing of those without a vector.

    Attributes:
        rows: (m,) the images that have a vector.
        labels: (n,) the labels that it learned from: `FREE`, `NONE` or the id of a class.
        label: (n,) what is found for each image, given labels included, in the same words.
        best, second: (n,) ids of the two likeliest classes; `FREE` without a vector.
        chance, next_chance: (n,) their probabilities, if the image belongs to a class.
        none_score: (n,) share of the images of the classes that look at least as foreign.
        is_none: (n,) whether the image belongs to no class.
        threshold: of ``none_score``.
        model: the classifier; its classes are ids.
    """

    rows: NDArray[np.int64]
    labels: Ids
    label: Ids
    best: Ids
    second: Ids
    chance: Floats
    next_chance: Floats
    none_score: Floats
    is_none: NDArray[np.bool_]
    threshold: float
    model: TACClassifier

    @property
    def doubt(self) -> Floats:
        """(n,) from 0 to 1: highest if two classes are equally probable or ``none_score`` is at its threshold."""
        threshold = max(self.threshold, 1e-9)
        foreign = threshold / np.maximum(self.none_score, threshold)
        found = np.where(self.is_none, self.none_score / threshold, np.maximum(foreign, 1 - self.chance))
        if not self.threshold:
            found = 1 - self.chance
        return np.where((self.best == FREE) | (self.labels != FREE), 0, found).astype(np.float32)


class Predictor:
    """Vectors of images, and what does not depend on labels, computed once.

    Args:
        vectors: (m, dim) of the images that have one.
        rows: (m,) which images these are; all by default.
        count: how many images there are in all.
        head: of the classifier.
        distractors: whether images may belong to no class.
        iterations: refinements, at most.
    """

    def __init__(
        self,
        vectors: Floats,
        rows: NDArray[np.int64] | None = None,
        count: int | None = None,
        *,
        head: Head | None = None,
        distractors: bool = True,
        iterations: int = 6,
    ) -> None:
        self.vectors, self.rows = vectors, np.arange(len(vectors)) if rows is None else rows
        self.count = len(vectors) if count is None else count
        self._base = TACClassifier(head, iterations=0, distractors=False)
        start = np.full(len(vectors), FREE)
        start[[0, -1]] = 1, 2  # any two: what they teach is not used
        self._base.fit(vectors, start)
        self._base.set_params(iterations=iterations, distractors="auto" if distractors else False)
        self.expected: tuple[float, float, float] | None = None  # what the last check found

    @staticmethod
    def possible(labels: Ids, rows: NDArray[np.int64]) -> bool:
        """Whether there are labels of two classes among these images."""
        found = labels[rows]
        return bool(len(np.unique(found[found > 0])) > 1)

    def predict(self, labels: Ids, by_hand: NDArray[np.bool_] | None = None) -> Found:
        """Labels (n,), `FREE`, `NONE` or ids, and whether they were given by hand (n,) -> predictions.

        Labels that were accepted and not given are the model's own, and teach it nothing.
        """
        model = self._learned(self._sure(labels, by_hand), False)
        chances = np.asarray(model.label_distributions_)
        every, best = np.arange(len(chances)), chances.argmax(1)
        rest = chances.copy()
        rest[every, best] = -1
        second = rest.argmax(1)
        scores, given = model.none_scores(), labels[self.rows]
        threshold = _threshold(float(model.none_threshold_), scores[given == FREE], given)
        none = np.where(given == FREE, (scores <= threshold) & (threshold > 0), given == NONE)
        ids = model.classes_.astype(np.int32)
        label = np.where(given != FREE, given, np.where(none, NONE, ids[best]))
        first = np.where(given > 0, given, ids[best])
        runner_up = np.where(first == ids[best], ids[second], ids[best])
        chance = np.where(given > 0, np.float32(1), chances[every, best])
        return Found(
            self.rows, labels, self._wide(label, labels), self._wide(first, FREE), self._wide(runner_up, FREE),
            self._wide(chance, 0.0), self._wide(rest[every, second], 0.0), self._wide(scores, 1.0),
            self._wide(none, labels == NONE), threshold, model,
        )  # fmt: skip

    def check(self, labels: Ids, by_hand: NDArray[np.bool_]) -> tuple[float, float, float]:
        """Estimate the accuracy and set the confidence of later predictions.

        Labels that were accepted are the model's own: they say nothing of its accuracy. So it is estimated with the
        others alone, if there are enough of them.
        """
        sure = self._sure(labels, by_hand)
        distractors = self._base.distractors
        if not (sure[self.rows] == NONE).any():  # nothing is called none of these: see _threshold
            self._base = copy(self._base).set_params(distractors=False)
        model = self._learned(sure, True).set_params(distractors=distractors)
        low, high = model.expected_accuracy_interval_
        self._base, self.expected = model, (float(model.expected_accuracy_), float(low), float(high))
        return self.expected

    def slope(self, labels: Ids, by_hand: NDArray[np.bool_], stop: Any = None) -> float:
        """How much more labels help: log-odds of the accuracy that e times as many labels bring.

        Half of the labels are hidden, and found from the other half, and from all but a fifth: the difference is the
        slope of the learning curve. With few labels it is mostly what is usual.
        """
        known = np.where(by_hand, labels, FREE).astype(np.int32)
        rows = self.rows[known[self.rows] > 0]
        rng = np.random.default_rng(0)
        shares = {}
        for part in (0.5, 0.2):
            right = total = 0
            for _ in range(HALVES):
                hidden = rows[rng.random(len(rows)) < part]
                fewer = known.copy()
                fewer[hidden] = FREE
                if not len(hidden) or not self.possible(fewer, self.rows) or (stop is not None and stop()):
                    continue
                model = self._learned(fewer, False)
                places = np.searchsorted(self.rows, hidden)
                right += int((model.classes_[model.label_distributions_[places].argmax(1)] == known[hidden]).sum())
                total += len(hidden)
            shares[part] = (right + 1, total + 2)
        odds = {part: logit(right / total) for part, (right, total) in shares.items()}
        seen = (odds[0.2] - odds[0.5]) / np.log(0.8 / 0.5)
        worth = min(total for _, total in shares.values())
        return float(np.clip((worth * seen + USUAL_WORTH * USUAL_SLOPE) / (worth + USUAL_WORTH), 0, 1))

    def _sure(self, labels: Ids, by_hand: NDArray[np.bool_] | None) -> Ids:
        """The labels that were given by hand, if there are enough of them; else all."""
        sure = labels if by_hand is None else np.where(by_hand, labels, FREE).astype(np.int32)
        return sure if self.possible(sure, self.rows) else labels

    def _learned(self, labels: Ids, check: bool) -> TACClassifier:
        none = labels == NONE
        return self.learned(np.where(none, FREE, labels).astype(np.int64), none, check=check)

    def learned(self, given: NDArray[Any], none: NDArray[np.bool_], *, check: bool) -> TACClassifier:
        """A classifier of labels (n,) as `TACClassifier` takes them, and of (n,) images that are of no class."""
        known = none[self.rows]
        return copy(self._base).refit(given[self.rows], none=known if known.any() else None, check=check)

    def _wide(self, values: NDArray[Any], other: Any) -> Any:
        """Values of the images with a vector (m,) -> of all images (n,); others get ``other``."""
        kind = np.float32 if values.dtype.kind == "f" else values.dtype if values.dtype == bool else np.int32
        found = np.full(self.count, other, dtype=kind) if np.ndim(other) == 0 else other.astype(kind)
        found[self.rows] = values
        return found


def _threshold(usual: float, scores: NDArray[np.float64], given: Ids) -> float:
    """The threshold of ``none_score`` for images without a label.

    People do not label a fair sample of the classes, but typical images, or doubtful ones. Measured by typical ones,
    all others look foreign. So nothing is called none of these before an image was labelled so, and then not many
    times the share that was.
    """
    known, all_known = int((given == NONE).sum()), int((given != FREE).sum())
    if not known or not len(scores):
        return 0.0
    most = min(0.95, MOST_NONE * (known + 1) / (all_known + 2))
    return min(usual, float(np.quantile(scores, most)))


def gain(accuracy: float, slope: float, labels: int, more: int) -> float:
    """The accuracy that so many more labels would bring, beyond what there is.

    >>> round(gain(0.9, 0.4, labels=50, more=50), 3)
    0.022
    """
    odds = logit(np.clip(accuracy, 1e-3, 1 - 1e-3)) + slope * np.log1p(more / max(1, labels))
    return max(0.0, float(expit(odds)) - accuracy)
