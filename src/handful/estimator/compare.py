"""The estimator against scikit-learn's own classifiers, on tasks of classes that no head has seen.

The others get the same rows, centred and scaled to unit length, as that is better for them too; and of each the setting
that is best on the first of these very tasks, which is more than a user could know.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from ..datasets.base import Bar, no_bar
from .classifier import TACClassifier
from .head import Head
from .rows import Frame, Points, unit
from .tasks import Task, TaskKind, draw_tasks

TRIALS = 5  # tasks by which the setting of a classifier is chosen
Floats = NDArray[np.float32]
# A classifier: rows and labels (-1: unlabelled) -> scores (rows, classes), higher is likelier; and none scores, if any.
Scores = tuple[NDArray[Any], NDArray[Any] | None]
Classifier = Callable[[Floats, NDArray[np.int64]], Scores]


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
    x: Floats, labels: NDArray[np.int64], kind: TaskKind, head: Head | None, *, jobs: int = -1, bar: Bar = no_bar,
    **drawn: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Accuracy (%) on the unlabelled rows that are of a class, its 95 % interval over draws, AUROC, seconds a task.

    ``drawn`` is of :class:`Draws`: ``draws``, ``seed``, ``spare``.
    """
    wanted = Draws(**drawn)
    draws = wanted.draws
    tasks = list(draw_tasks(labels, kind, draws, wanted.seed, wanted.spare))

    def judge(classify: Classifier, count: int) -> tuple[NDArray[Any], ...]:
        """Accuracy, AUROC and seconds of the first so many tasks."""
        found = Parallel(n_jobs=jobs)(delayed(_judge)(classify, x[task.rows], task) for task in tasks[:count])
        return tuple(np.array(column, dtype=float) for column in zip(*found, strict=True))

    rows = []
    for name, settings in classifiers(head, bool(kind.others)).items():
        tick = bar(f"{name}, {kind}", len(settings) + 1)
        chosen, for_area = _best_settings(settings, partial(judge, count=min(TRIALS, draws)), bool(kind.others), tick)
        accuracy, areas, seconds = judge(settings[chosen], draws)
        if for_area != chosen:
            _, areas, _ = judge(settings[for_area], draws)
        tick(1)
        rows.append({
            "classifier": name, "setting": chosen, "task": str(kind), "accuracy": 100 * float(accuracy.mean()),
            "interval": 196 * float(accuracy.std(ddof=1)) / len(accuracy) ** 0.5,
            "auroc": 100 * float(areas.mean()) if kind.others else None, "seconds": float(np.median(seconds)),
        })  # fmt: skip
    return rows


def _best_settings(
    settings: dict[str, Classifier], judge: Callable[[Classifier], tuple[NDArray[Any], ...]], others: bool,
    tick: Callable[[float], None],
) -> tuple[str, str]:  # fmt: skip
    """The settings with the best accuracy and the best AUROC: what is none of these may want another one."""
    if len(settings) == 1:
        tick(1)
        return next(iter(settings)), next(iter(settings))
    scores = {}
    for setting, classify in settings.items():
        scores[setting] = [column.mean() for column in judge(classify)]
        tick(1)
    best = max(scores, key=lambda setting: scores[setting][0])
    return best, max(scores, key=lambda setting: scores[setting][1]) if others else best


def classifiers(head: Head | None, others: bool) -> dict[str, dict[str, Classifier]]:
    """All that are compared, with the settings of which the best is taken."""
    ours: dict[str, dict[str, Classifier]] = {
        "TACClassifier": {"": lambda x, y: _ours(TACClassifier(distractors=others), x, y)}
    }
    if head is not None:
        ours["TACClassifier with head"] = {"": lambda x, y: _ours(TACClassifier(head, distractors=others), x, y)}
    return {
        **ours,
        "LabelSpreading": {f"gamma={gamma:g}": _spreading(gamma) for gamma in (0.5, 1, 2, 5, 10, 20)},
        "SelfTrainingClassifier(LogisticRegression)": {
            f"C={c:g}, threshold={cut:g}": _self_training(c, cut) for c in (10, 100) for cut in (0.75, 0.9)
        },
        "LogisticRegression": {f"C={c:g}": _logistic(c) for c in (1, 10, 100)},
        "nearest class mean": {"": _nearest_mean},
    }


def _judge(classify: Classifier, x: Floats, task: Task) -> tuple[float, float, float]:
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # self-training that labels nothing says so
        scores, none = classify(x, task.given)
    seconds = time.perf_counter() - begun
    free = task.given < 0
    own = free & (task.truth >= 0)
    accuracy = float((scores.argmax(1) == task.truth)[own].mean())
    if (task.truth[free] >= 0).all():
        return accuracy, np.nan, seconds
    other = task.truth[free] < 0
    candidates = [none] if none is not None else list(_doubts(scores))
    return accuracy, max(float(roc_auc_score(other, doubt[free])) for doubt in candidates), seconds


def _doubts(chances: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """What a classifier without an answer of its own says for "none of these": three ways to be unsure."""
    ordered = np.sort(chances, axis=1)
    yield -ordered[:, -1]
    yield ordered[:, -2] - ordered[:, -1]
    yield -(chances * np.log(np.maximum(chances, 1e-12))).sum(1)


def _ours(model: TACClassifier, x: Floats, y: NDArray[np.int64]) -> Scores:
    model.fit(x, y)
    return model.label_distributions_, -model.none_score(x)


def _unit(x: Floats) -> Floats:
    found: Floats = Points(x, Frame.of(x)).vectors(slice(None))
    return found


def _nearest_mean(x: Floats, y: NDArray[np.int64]) -> Scores:
    rows = _unit(x)
    means = unit(np.stack([rows[y == label].mean(0) for label in range(y.max() + 1)]))
    return rows @ means.T, -(rows @ means.T).max(1)


def _spreading(gamma: float) -> Classifier:
    def classify(x: Floats, y: NDArray[np.int64]) -> Scores:
        model = LabelSpreading(kernel="rbf", gamma=gamma, max_iter=100).fit(_unit(x), y)
        return np.nan_to_num(model.label_distributions_), None

    return classify


def _self_training(c: float, threshold: float) -> Classifier:
    def classify(x: Floats, y: NDArray[np.int64]) -> Scores:
        rows = _unit(x)
        model = SelfTrainingClassifier(LogisticRegression(C=c), threshold=threshold).fit(rows, y)
        return model.predict_proba(rows), None

    return classify


def _logistic(c: float) -> Classifier:
    def classify(x: Floats, y: NDArray[np.int64]) -> Scores:
        rows = _unit(x)
        return LogisticRegression(C=c).fit(rows[y >= 0], y[y >= 0]).predict_proba(rows), None

    return classify
