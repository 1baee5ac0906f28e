"""The accuracy to expect, from labels left out in turn and from what holds without labels; a confidence to match."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, expit, logit

from .refinement import CELLS, Model, Settings, Task, refine
from .rows import Floats, softmax
from .space import Rows, Space, evenly

CHECKED = 1500  # unlabelled rows that a check looks at
FOLDS = 5
NEAREST = 3  # neighbours that should have the same class
# The guess without left-out labels: of what chance leaves over, the share whose log-odds are SLOPE * (sum of three
# agreements) + OFFSET for one label a class, and EVEN more if the classes are even; fitted on the sets that
# docs/estimator.md names. It is worth as much as WORTH left-out labels; and the whole estimate never more than as many
# for each fold, whose labels one and the same model finds or misses, nor than CLASS_WORTH for each class (by its
# share), which a model finds or misses as a whole.
SLOPE, OFFSET, EVEN, WORTH, CLASS_WORTH = 3.7, -8.0, 0.35, 20.0, 12.0
GAIN = 1.4  # log-odds by which accuracy grows from one label a class to very many; n labels lack 1 / sqrt(n) of them


@dataclass(frozen=True)
class Accuracy:
    """The expected accuracy on unlabelled rows of the classes.

    Attributes:
        expected: of what is predicted with all labels.
        worth: how many left-out labels this knowledge is worth; its interval follows from it.
        guess: what is expected without left-out labels.
        left_out: share of the left-out labels that were found, weighted by the classes' shares; None if there are none.
        labels: how many, by weight.
    """

    expected: float
    worth: float
    guess: float
    left_out: float | None = None
    labels: float = 0.0

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where the accuracy lies with this probability."""
        sides = np.array([(1 - level) / 2, (1 + level) / 2])
        low, high = betaincinv(self.expected * self.worth, (1 - self.expected) * self.worth, sides)
        return float(low), float(high)


def expected_accuracy(task: Task, model: Model, settings: Settings) -> Accuracy:
    """Check a model of a task."""
    checked = evenly(task.unlabelled, min(CHECKED, max(1, CELLS // task.classes)))
    guess = _guess(task, model, settings, checked)
    fold, count = folds(task.space, task.labelled, task.labels)
    right, who, missing = [], [], []
    for number in range(count):
        out = fold == number
        some = Task(task.space, task.labelled[~out], task.labels[~out], task.classes,
                    np.concatenate([task.labelled[out], checked]))  # fmt: skip
        found = refine(some, settings).logits(task.space.smoothed(task.labelled[out])).argmax(1)
        right.append(found == task.labels[out])
        who.append(task.labels[out])
        missing.append((some.shots**-0.5 - task.shots**-0.5)[task.labels[out]])
    if not count:
        return Accuracy(guess, WORTH, guess)
    hits, classes, lost = (np.concatenate(parts) for parts in (right, who, missing))
    sizes = class_sizes(task, model, guess)
    weights = (sizes / np.maximum(np.bincount(classes, minlength=task.classes), 1))[classes]
    weights /= weights.sum()
    labels = 1 / float((weights**2).sum())
    share, part = float(weights @ hits), labels / (labels + WORTH)
    mixed = np.clip(part * share + (1 - part) * guess, 1e-3, 0.995)
    expected = float(expit(logit(mixed) + part * GAIN * float(weights @ lost)))
    many = 1 / float((model.shares**2).sum())  # classes, by their shares
    worth = 1 / (1 / (labels + WORTH) + 1 / (count * WORTH) + 1 / (many * CLASS_WORTH))
    return Accuracy(expected, worth, guess, share, labels)


def class_sizes(task: Task, model: Model, accuracy: float) -> NDArray[np.float64]:
    """(classes,) how much labels of a class count in what is said of all rows, up to a factor.

    They count as the class has rows. But a class that draws rows of others looks larger than it is, and is itself found
    well: the fewer labels there are and the less is right, the less its size counts.
    """
    more = float(task.shots.mean()) - 1
    return np.asarray(model.shares ** (accuracy ** (1 / more)) if more > 0 else np.ones(task.classes))


def _guess(task: Task, model: Model, settings: Settings, checked: Rows) -> float:
    """The accuracy to expect from how well classes hold together: no label is needed for it."""
    if not len(checked):
        return 0.5
    space, anchors = task.space, model.logits(task.space.smoothed(task.space.core)).argmax(1)
    known = space.view.itself[task.labelled]
    anchors[known[known >= 0]] = task.labels[known >= 0]
    logits = model.logits(space.smoothed(checked))
    found, sure = logits.argmax(1), softmax(logits).max(1)
    near = space.view.near[checked][:, :NEAREST]
    with_neighbours = float((anchors[near] == found[:, None]).mean()) if near.size else 1.0
    typical = np.array([_typical(task, checked, found, sure, label) for label in range(task.classes)])
    others = ~np.isin(checked, typical)
    again = Task(space, typical, np.arange(task.classes), task.classes, checked[others])
    taught = refine(again, settings).logits(space.smoothed(checked[others])).argmax(1)
    taught_again = float((taught == found[others]).mean()) if others.any() else 1.0
    odds = (
        SLOPE * (with_neighbours + taught_again + model.agreement)
        + OFFSET
        + EVEN * model.evenness
        + GAIN * float((1 - task.shots**-0.5).mean())
    )
    chance = 1 / task.classes
    return float(min(chance + (1 - chance) * expit(odds), 0.98))


def _typical(task: Task, rows: Rows, found: NDArray[np.int64], sure: Floats, label: int) -> int:
    """The row of a class of which the model is as sure as of its other rows, in the middle."""
    mine = np.flatnonzero(found == label)
    if not len(mine):
        given = task.labelled[task.labels == label]
        return int(given[task.space.order[given].argmin()])
    return int(rows[mine[np.lexsort((task.space.order[rows[mine]], sure[mine]))[len(mine) // 2]]])


def folds(space: Space, labelled: Rows, labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """In which fold each label is left out, -1 for the only one of its class; and how many folds there are.

    Labels of a class are taken in the order of their distance from the centre, and each class begins with another
    fold: else those left out of a fold would be the nearest of all classes, and look stranger than rows do.
    """
    fold = np.full(len(labelled), -1)
    ordered = np.lexsort((space.order[labelled], labels))
    shots = np.bincount(labels)
    count = int(min(FOLDS, shots.max()))
    if count < 2:
        return fold, 0
    place = np.arange(len(labels)) - np.repeat(np.cumsum(shots) - shots, shots)  # of a label within its class
    first = space.order[labelled[ordered[np.cumsum(shots) - shots]]]
    turn = np.argsort(np.argsort(first))[labels[ordered]]
    fold[ordered] = np.where(shots[labels[ordered]] > 1, (place + turn) % count, -1)
    return fold, count
