"""Other classifiers of vectors from a few labels, which the estimator is compared with.

Each is a function of the rows of a task (:class:`Shared`), of the given labels (-1: unlabelled) and of the number of
classes, and returns probabilities (rows, classes). Those with a setting choose it as a user would, by cross-validation
over the labels that are given: the first setting is the default, for a single label a class and for ties.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh, solve
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from ..errors import HandfulError
from .rows import softmax
from .shared import Floats, Shared, largest, normalised, unit

Labels = NDArray[np.int64]
Rival = Callable[[Shared, Labels, int], Floats]
# The same with several settings at once, which share what they can: probabilities for each.
Family = Callable[[Shared, Labels, int, Sequence[Any]], list[Floats]]

FOLDS = 3
COSINE = 10.0  # what multiplies cosines before a softmax
SPREAD = 0.2  # of LabelSpreading with the kernel "rbf": what a row takes from the others


def compared() -> dict[str, Rival]:
    """All rivals by their names in tables."""
    return {
        "LogisticRegression": tuned(logistic, (10, 1, 100, 0.1, 1000)),
        "LDA (shrunk)": tuned(lda, (0.5, 0.1, 0.9, "auto")),
        "nearest class mean": nearest_mean,
        "k nearest neighbours": tuned(neighbours, (1, 3, 5, 10)),
        "SelfTraining(LogisticRegression)": tuned(self_training, ((10, 0.75), (10, 0.9))),
        "LabelSpreading (knn)": tuned(knn_spreading, (0.5, 0.2, 0.8)),
        "LabelSpreading (rbf)": tuned(rbf_spreading, (5, 1, 20)),
        "BD-CSPN": bd_cspn,
        "LaplacianShot": tuned(laplacian_shot, (0.7, 0.1, 1.5)),
        "PT-MAP": pt_map,
    }


def choose(words: str) -> dict[str, Rival]:
    """The rivals that a comma-separated list names: each word chooses those whose name contains it.

    >>> list(choose("lda,spreading"))
    ['LDA (shrunk)', 'LabelSpreading (knn)', 'LabelSpreading (rbf)']
    """
    rivals, chosen = compared(), set()
    for word in (part.strip().lower() for part in words.split(",") if part.strip()):
        if not (found := {name for name in rivals if word in name.lower()}):
            raise HandfulError(f"no rival's name contains '{word}': choose from {', '.join(rivals)}")
        chosen |= found
    return {name: rival for name, rival in rivals.items() if name in chosen}


def tuned(family: Family, settings: Sequence[Any]) -> Rival:
    """The setting that names most of the hidden labels, each label hidden once."""

    def classify(shared: Shared, given: Labels, classes: int) -> Floats:
        rows = np.flatnonzero(given >= 0)
        folds = min(FOLDS, int(np.bincount(given[rows]).min()))
        if folds < 2:
            return family(shared, given, classes, settings[:1])[0]
        hits = np.zeros(len(settings), dtype=np.int64)
        for _, hidden in StratifiedKFold(folds, shuffle=True, random_state=0).split(rows, given[rows]):
            fewer = given.copy()
            fewer[rows[hidden]] = -1
            found = family(shared, fewer, classes, settings)
            hits += [(chances[rows[hidden]].argmax(1) == given[rows[hidden]]).sum() for chances in found]
        return family(shared, given, classes, [settings[int(hits.argmax())]])[0]  # the first of equals

    return classify


def class_means(x: Floats, given: Labels, classes: int) -> Floats:
    return np.stack([x[given == label].mean(0) for label in range(classes)])


def _squared(x: Floats, means: Floats) -> Floats:
    """Squared distances (rows, classes)."""
    return np.asarray((x**2).sum(1)[:, None] + (means**2).sum(1) - 2 * x @ means.T)


def nearest_mean(shared: Shared, given: Labels, classes: int) -> Floats:
    return softmax(COSINE * shared.rows @ unit(class_means(shared.rows, given, classes)).T)


def logistic(shared: Shared, given: Labels, classes: int, cs: Sequence[float]) -> list[Floats]:
    """Logistic regression on the labelled rows.

    Its weights are combinations of the labelled rows, so that as many coordinates as there are labels suffice: those in
    the span of the labelled rows. Settings are fitted from the strongest penalty on, each from the one before it.
    """
    known = given >= 0
    values, axes = eigh(shared.cosines[np.ix_(known, known)])
    kept = values > 1e-6 * values[-1]
    rows = shared.cosines[:, known] @ (axes[:, kept] / np.sqrt(values[kept]))
    model, found = LogisticRegression(max_iter=200, warm_start=True), {}
    for c in sorted(cs):
        found[c] = np.asarray(_fitted(model.set_params(C=c), rows, given).predict_proba(rows))
    return [found[c] for c in cs]


def lda(shared: Shared, given: Labels, classes: int, shrinkages: Sequence[float | str]) -> list[Floats]:
    """One covariance matrix for all classes, which count alike, drawn towards a multiple of the identity.

    "auto" is the shrinkage of Ledoit and Wolf, of the labelled rows around their class means.
    """
    known = given >= 0
    if known.sum() < classes + 2:
        return [nearest_mean(shared, given, classes)] * len(shrinkages)
    rows, labels = shared.reduced.astype(np.float64), given[known]
    means = class_means(rows[known], labels, classes)
    apart = rows[known] - means[labels]
    within = (apart.T / (classes * np.bincount(labels, minlength=classes)[labels])) @ apart
    level, found = np.trace(within) / len(within), []
    for shrinkage in shrinkages:
        share = ledoit_wolf_shrinkage(apart, assume_centered=True) if shrinkage == "auto" else float(shrinkage)
        shrunk = (1 - share) * within + (share * level + 1e-12) * np.eye(len(within))
        weights = solve(shrunk, means.T, assume_a="pos")
        found.append(softmax(rows @ weights - 0.5 * (means.T * weights).sum(0)))
    return found


def neighbours(shared: Shared, given: Labels, classes: int, counts: Sequence[int]) -> list[Floats]:
    """The labels of the nearest labelled rows, weighted by the inverse of the distance."""
    known = np.flatnonzero(given >= 0)
    cosines = shared.cosines[:, known]
    near = largest(cosines, min(max(counts), len(known)))
    apart = np.sqrt(np.maximum(2 - 2 * np.take_along_axis(cosines, near, 1), 0))
    weights = 1 / np.maximum(apart, 1e-3)
    votes, found = np.zeros((len(near), classes)), {}
    for place in range(near.shape[1]):
        votes[np.arange(len(near)), given[known[near[:, place]]]] += weights[:, place]
        found[place + 1] = votes / votes.sum(1, keepdims=True)
    return [found[min(count, near.shape[1])] for count in counts]


def self_training(
    shared: Shared, given: Labels, classes: int, settings: Sequence[tuple[float, float]], rounds: int = 10
) -> list[Floats]:
    """Logistic regression that takes what it is sure of as labels, as scikit-learn's SelfTrainingClassifier.

    A setting is C and the threshold. Each fit starts from the one before it; those of one C have the first in common.
    """
    rows, found, first = shared.reduced, [], {}
    for c, threshold in settings:
        labels = given.copy()
        if c not in first:
            first[c] = _fitted(LogisticRegression(C=c, max_iter=200, warm_start=True), rows, labels)
        model = deepcopy(first[c])
        for number in range(rounds + 1):
            chances = np.asarray(model.predict_proba(rows))
            sure = (labels < 0) & (chances.max(1) > threshold)
            if number == rounds or not sure.any():
                break
            labels[sure] = chances[sure].argmax(1)
            _fitted(model, rows, labels)
        found.append(chances)
    return found


def _fitted(model: LogisticRegression, rows: Floats, given: Labels) -> LogisticRegression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # one label a class looks like a regression
        return model.fit(rows[given >= 0], given[given >= 0])


def knn_spreading(
    shared: Shared, given: Labels, classes: int, alphas: Sequence[float], rounds: int = 100, least: float = 1e-3
) -> list[Floats]:
    """scikit-learn's LabelSpreading with ten neighbours, whose graph is the same for any labels."""
    start, found = _one_hot(given, classes), []
    for alpha in alphas:
        soft, before, own = start, np.zeros_like(start), (1 - alpha) * start
        for _ in range(rounds):
            if np.abs(soft - before).sum() < least:
                break
            soft, before = alpha * (shared.knn_graph @ soft) + own, soft
        found.append(_shares(soft))
    return found


def rbf_spreading(shared: Shared, given: Labels, classes: int, gammas: Sequence[float]) -> list[Floats]:
    """What scikit-learn's LabelSpreading converges to with the kernel "rbf": one linear system for each graph."""
    start, found = _one_hot(given, classes), []
    for gamma in gammas:
        if gamma not in shared.rbf_solvers:
            graph = normalised(np.exp(2 * gamma * (np.minimum(shared.cosines, 1) - 1)))
            graph *= -SPREAD
            np.fill_diagonal(graph, 1)
            shared.rbf_solvers[gamma] = cho_factor(graph, overwrite_a=True, check_finite=False)
        found.append(_shares(np.maximum(cho_solve(shared.rbf_solvers[gamma], start, check_finite=False), 0)))
    return found


def _one_hot(given: Labels, classes: int) -> Floats:
    found = np.zeros((len(given), classes), dtype=np.float32)
    found[given >= 0, given[given >= 0]] = 1
    return found


def _shares(soft: Floats) -> Floats:
    """Rows that sum to 1; those that no label has reached stay 0."""
    total = soft.sum(1, keepdims=True)
    return np.asarray(np.divide(soft, total, out=np.zeros_like(soft), where=total > 0))


def bd_cspn(shared: Shared, given: Labels, classes: int, most: int = 8) -> Floats:
    """Means that are corrected once (Liu, Song and Qin, "Prototype Rectification", ECCV 2020).

    Unlabelled rows are moved by the difference of the means of both kinds. The ``most`` rows that are most certainly of
    a class join its labelled ones, each weighted by its cosine with the class mean.
    """
    x, known = shared.rows, given >= 0
    moved = x.copy()
    moved[~known] += x[known].mean(0) - x[~known].mean(0)
    moved = unit(moved)
    cosines = moved @ unit(class_means(moved, given, classes)).T  # (rows, classes)
    chosen = np.where(known, given, cosines.argmax(1))
    means = []
    for label in range(classes):
        own = np.flatnonzero(known & (given == label))
        found = np.flatnonzero(~known & (chosen == label))
        found = found[np.argsort(-cosines[found, label], kind="stable")[:most]]
        rows = np.concatenate([own, found])
        means.append(softmax(COSINE * cosines[rows, label][None])[0] @ moved[rows])
    return softmax(COSINE * moved @ unit(np.stack(means)).T)


def laplacian_shot(
    shared: Shared, given: Labels, classes: int, weights: Sequence[float], near: int = 3, rounds: int = 20
) -> list[Floats]:
    """Nearest mean with neighbours that agree (Ziko, Dolz, Granger and Ben Ayed, "LaplacianShot", ICML 2020).

    Every row weighs its squared distances to the class means against the soft labels of its nearest rows.
    """
    known, links, found = given >= 0, shared.links(near, False), []
    distances = 0.5 * _squared(shared.rows, class_means(shared.rows, given, classes))
    fixed = _one_hot(given, classes)[known]
    for weight in weights:
        soft = softmax(-distances)
        for _ in range(rounds):
            before = soft
            soft[known] = fixed
            soft = softmax(weight * (links @ soft) - distances)
            if np.abs(soft - before)[~known].max(initial=0) < 1e-5:
                break
        found.append(soft)
    return found


def pt_map(shared: Shared, given: Labels, classes: int, rounds: int = 20, rate: float = 0.2) -> Floats:
    """Power transform, then transport to the class means (Hu, Gripon and Pateux, "PT-MAP", ICANN 2021).

    The unlabelled rows are shared out evenly between the classes: it expects classes of equal size.
    """
    values = np.asarray(shared.x, dtype=np.float32)
    values = unit(np.sign(values) * np.sqrt(np.abs(values)))  # by magnitude, where vectors may be negative
    known = given >= 0
    values = unit(values - values.mean(0))
    means, plan = class_means(values, given, classes), np.eye(classes, dtype=np.float32)[np.maximum(given, 0)]
    for _ in range(rounds):
        plan[~known] = _transport(_squared(values[~known], means))
        centres = plan.T @ values / plan.sum(0)[:, None]
        means = means + np.float32(rate) * (centres - means)
    distances = _squared(values, means)
    plan[~known] = _transport(distances[~known])
    plan[known] = softmax(-COSINE * distances[known])
    return np.asarray(plan / plan.sum(1, keepdims=True))


def _transport(distances: Floats, sharpness: float = 10.0, rounds: int = 100) -> Floats:
    """Sinkhorn: rows sum to 1, columns to equal shares of all rows."""
    kernel = np.exp(-sharpness * (distances - distances.min(1, keepdims=True)).astype(np.float64))
    share, of_rows = len(kernel) / kernel.shape[1], np.ones(len(kernel))
    for _ in range(rounds):
        of_classes = share / np.maximum(of_rows @ kernel, 1e-300)
        of_rows = 1 / np.maximum(kernel @ of_classes, 1e-300)
    return np.asarray(kernel * of_classes * of_rows[:, None])
