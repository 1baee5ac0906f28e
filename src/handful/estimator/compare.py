"""``handful head evaluate``: the estimator, with and without a head, against scikit-learn's own classifiers.

Tasks are of classes that no head has seen. Of each classifier the setting is taken that is best on the first of these
very tasks, which is more than a user could know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.base import Bar, no_bar
from .benchmark import Classifier, Outcome, half_interval, in_parallel, judge, ours, plain
from .classifier import TACClassifier
from .head import Head
from .rivals import Family, Labels, logistic, nearest_mean, rbf_spreading, self_training
from .shared import Floats, Shared
from .tasks import Task, TaskKind, draw_tasks

TRIALS = 5  # tasks by which the setting of a classifier is chosen


@dataclass(frozen=True)
class Draws:
    """Which tasks classifiers are compared on, see :func:`draw_tasks`.

    Attributes:
        draws: how many.
        seed: fixes them.
        spare: rows that are only ever of other classes.
    """

    draws: int = 100
    seed: int = 0
    spare: NDArray[np.int64] | None = None


def compare(
    x: Floats, labels: Labels, kind: TaskKind, head: Head | None, *, jobs: int = -1, bar: Bar = no_bar, **drawn: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Accuracy (%) on the unlabelled rows that are of a class, its 95 % interval over draws, AUROC, seconds a task.

    ``drawn`` is of :class:`Draws`: ``draws``, ``seed``, ``spare``.
    """
    wanted = Draws(**drawn)
    tasks = list(draw_tasks(labels, kind, wanted.draws, wanted.seed, wanted.spare))

    def measure(classify: Classifier, count: int = wanted.draws) -> dict[str, NDArray[Any]]:
        """The outcomes of the first so many tasks, by what is measured."""
        found = list(in_parallel(jobs, _judge, ((classify, x[task.rows], task) for task in tasks[:count])))
        return {key: np.array([getattr(one, key) for one in found]) for key in ("accuracy", "auroc", "seconds")}

    rows = []
    for name, settings in classifiers(head, bool(kind.others)).items():
        tick = bar(f"{name}, {kind}", len(settings) + 1)
        trial = partial(measure, count=min(TRIALS, wanted.draws))
        chosen, for_area = _best_settings(settings, trial, bool(kind.others), tick)
        found = measure(settings[chosen])
        areas = found["auroc"] if for_area == chosen else measure(settings[for_area])["auroc"]
        tick(1)
        rows.append({
            "classifier": name, "setting": chosen, "task": str(kind), "accuracy": 100 * float(found["accuracy"].mean()),
            "interval": 100 * half_interval(found["accuracy"]),
            "auroc": 100 * float(areas.mean()) if kind.others else None, "seconds": float(np.median(found["seconds"])),
        })  # fmt: skip
    return rows


def _judge(classify: Classifier, x: Floats, task: Task) -> Outcome:
    return judge(classify, Shared.of(x), task)


def _best_settings(
    settings: dict[str, Classifier], trial: Callable[[Classifier], dict[str, NDArray[Any]]], others: bool,
    tick: Callable[[float], None],
) -> tuple[str, str]:  # fmt: skip
    """The settings with the best accuracy and the best AUROC: what is none of these may want another one."""
    if len(settings) == 1:
        tick(1)
        return next(iter(settings)), next(iter(settings))
    scores = {}
    for setting, classify in settings.items():
        scores[setting] = {key: column.mean() for key, column in trial(classify).items()}
        tick(1)
    best = max(scores, key=lambda setting: scores[setting]["accuracy"])
    return best, max(scores, key=lambda setting: scores[setting]["auroc"]) if others else best


def classifiers(head: Head | None, others: bool) -> dict[str, dict[str, Classifier]]:
    """All that are compared, with the settings of which the best is taken."""
    found = {"TACClassifier": {"": ours(TACClassifier(distractors=others))}}
    if head is not None:
        found["TACClassifier with head"] = {"": ours(TACClassifier(head, distractors=others))}
    trained = [(c, cut) for c in (10, 100) for cut in (0.75, 0.9)]
    return {
        **found,
        "LabelSpreading": {f"gamma={gamma:g}": _one_of(rbf_spreading, gamma) for gamma in (0.5, 1, 2, 5, 10, 20)},
        "SelfTrainingClassifier(LogisticRegression)": {
            f"C={c:g}, threshold={cut:g}": _one_of(self_training, (c, cut)) for c, cut in trained
        },
        "LogisticRegression": {f"C={c:g}": _one_of(logistic, c) for c in (1, 10, 100)},
        "nearest class mean": {"": plain(nearest_mean)},
    }


def _one_of(family: Family, setting: Any) -> Classifier:
    return plain(lambda shared, given, classes: family(shared, given, classes, [setting])[0])
