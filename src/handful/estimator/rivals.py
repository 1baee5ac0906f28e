"""Other classifiers of vectors from a few labels, which the estimator is compared with.

Each is a function of X (rows, features), of the given labels (-1: unlabelled) and of the number of classes, and returns
probabilities (rows, classes). Those with a setting choose it as a user would, by cross-validation over the labels that
are given: the first setting is the default, for a single label a class and for ties.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax as _softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

Floats = NDArray[Any]
Labels = NDArray[np.int64]
Rival = Callable[[Floats, Labels, int], Floats]
Setting = Callable[[Floats, Labels, int], Floats]

FOLDS = 3
COSINE = 10.0  # what multiplies cosines before a softmax
NEIGHBOURS = 10  # of LabelSpreading with the kernel "knn"
REDUCED = 150  # principal directions that LDA and self-training get, which take long in more


def compared() -> dict[str, Rival]:
    """All rivals by their names in tables."""
    return {
        "LogisticRegression": _prepared(tuned({c: partial(_logistic, c=c) for c in (10, 1, 100, 0.1, 1000)})),
        "LDA, shrunk": _prepared(tuned({s: partial(_lda, shrinkage=s) for s in (0.5, 0.1, 0.9, "auto")})),
        "nearest class mean": _prepared(nearest_mean),
        "k nearest neighbours": _prepared(tuned({k: partial(_neighbours, k=k) for k in (1, 3, 5, 10)})),
        "SelfTraining(LogisticRegression)": _prepared(
            tuned({t: partial(_self_training, threshold=t) for t in (0.75, 0.9)})
        ),
        "LabelSpreading, knn": _prepared(tuned({a: partial(_spreading, "knn", alpha=a) for a in (0.5, 0.2, 0.8)})),
        "LabelSpreading, rbf": _prepared(tuned({g: partial(_spreading, "rbf", gamma=g) for g in (5, 1, 20)})),
        "BD-CSPN": _prepared(bd_cspn),
        "LaplacianShot": _prepared(tuned({w: partial(laplacian_shot, weight=w) for w in (0.7, 0.1, 1.5)})),
        "PT-MAP": pt_map,
    }


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    return np.asarray(_softmax(x, axis=-1))


def unit(x: Floats) -> Floats:
    """Rows of length 1; rows of zeros stay."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))


def _prepared(rival: Rival) -> Rival:
    """The rival on unit rows around the mean of all of them, which is better for every one of them."""

    def classify(x: Floats, given: Labels, classes: int) -> Floats:
        rows = unit(np.asarray(x, dtype=np.float64))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", UserWarning)  # self-training that labels nothing says so
            warnings.simplefilter("ignore", RuntimeWarning)  # spreading divides by 0 where no label arrives
            return rival(unit(rows - rows.mean(0)), given, classes)

    return classify


def tuned(settings: dict[Any, Setting]) -> Rival:
    """The setting that names most of the hidden labels, each label hidden once."""

    def classify(x: Floats, given: Labels, classes: int) -> Floats:
        rows = np.flatnonzero(given >= 0)
        folds = min(FOLDS, int(np.bincount(given[rows]).min()))
        if folds < 2:
            return next(iter(settings.values()))(x, given, classes)
        hits = dict.fromkeys(settings, 0)
        for _, hidden in StratifiedKFold(folds, shuffle=True, random_state=0).split(rows, given[rows]):
            fewer = given.copy()
            fewer[rows[hidden]] = -1
            for name, setting in settings.items():
                hits[name] += int((setting(x, fewer, classes)[rows[hidden]].argmax(1) == given[rows[hidden]]).sum())
        return settings[max(hits, key=lambda name: hits[name])](x, given, classes)  # the first of equals

    return classify


def class_means(x: Floats, given: Labels, classes: int) -> Floats:
    return np.stack([x[given == label].mean(0) for label in range(classes)])


def _squared(x: Floats, means: Floats) -> Floats:
    """Squared distances (rows, classes)."""
    return np.asarray((x**2).sum(1)[:, None] + (means**2).sum(1) - 2 * x @ means.T)


def nearest_mean(x: Floats, given: Labels, classes: int) -> Floats:
    return softmax(COSINE * x @ unit(class_means(x, given, classes)).T)


def _logistic(x: Floats, given: Labels, classes: int, c: float) -> Floats:
    return np.asarray(LogisticRegression(C=c, max_iter=200).fit(x[given >= 0], given[given >= 0]).predict_proba(x))


def _lda(x: Floats, given: Labels, classes: int, shrinkage: float | str) -> Floats:
    """One covariance matrix for all classes, drawn towards a multiple of the identity."""
    if (given >= 0).sum() < classes + 2:
        return nearest_mean(x, given, classes)
    rows = _reduced(x)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage, priors=np.full(classes, 1 / classes))
    return np.asarray(model.fit(rows[given >= 0], given[given >= 0]).predict_proba(rows))


def _reduced(x: Floats) -> Floats:
    """The rows in their principal directions."""
    return np.asarray(x @ np.linalg.eigh(x.T @ x)[1][:, -REDUCED:])


def _neighbours(x: Floats, given: Labels, classes: int, k: int) -> Floats:
    known = given >= 0
    model = KNeighborsClassifier(min(k, int(known.sum())), weights="distance").fit(x[known], given[known])
    return np.asarray(model.predict_proba(x))


def _self_training(x: Floats, given: Labels, classes: int, threshold: float) -> Floats:
    rows = _reduced(x)
    model = SelfTrainingClassifier(LogisticRegression(C=10, max_iter=200), threshold=threshold).fit(rows, given)
    return np.asarray(model.predict_proba(rows))


def _spreading(kernel: str, x: Floats, given: Labels, classes: int, **options: float) -> Floats:
    model = LabelSpreading(kernel=kernel, n_neighbors=min(NEIGHBOURS, len(x)), max_iter=100, **options).fit(x, given)
    return np.asarray(np.nan_to_num(model.label_distributions_))


def bd_cspn(x: Floats, given: Labels, classes: int, most: int = 8) -> Floats:
    """Means that are corrected once (Liu, Song and Qin, "Prototype Rectification", ECCV 2020).

    Unlabelled rows are moved by the difference of the means of both kinds. The ``most`` rows that are most certainly of
    a class join its labelled ones, each weighted by its cosine with the class mean.
    """
    known = given >= 0
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
        means.append(softmax(COSINE * cosines[rows, label]) @ moved[rows])
    return softmax(COSINE * moved @ unit(np.stack(means)).T)


def laplacian_shot(
    x: Floats, given: Labels, classes: int, weight: float = 0.7, neighbours: int = 3, rounds: int = 20
) -> Floats:
    """Nearest mean with neighbours that agree (Ziko, Dolz, Granger and Ben Ayed, "LaplacianShot", ICML 2020).

    Every row weighs its squared distances to the class means against the soft labels of its nearest rows.
    """
    known = given >= 0
    distances = 0.5 * _squared(x, class_means(x, given, classes))
    near = NearestNeighbors(n_neighbors=min(neighbours + 1, len(x))).fit(x).kneighbors(x, return_distance=False)[:, 1:]
    soft = softmax(-distances)
    fixed = np.eye(classes)[given[known]]
    for _ in range(rounds):
        soft[known] = fixed
        soft = softmax(-distances + weight * soft[near].sum(1))
    return soft


def pt_map(x: Floats, given: Labels, classes: int, rounds: int = 20, rate: float = 0.2) -> Floats:
    """Power transform, then transport to the class means (Hu, Gripon and Pateux, "PT-MAP", ICANN 2021).

    The unlabelled rows are shared out evenly between the classes: it expects classes of equal size.
    """
    values = np.asarray(x, dtype=np.float64)
    values = unit(np.sign(values) * np.sqrt(np.abs(values)))  # by magnitude, where vectors may be negative
    known = given >= 0
    values = unit(values - values.mean(0))
    means, plan = class_means(values, given, classes), np.eye(classes)[np.maximum(given, 0)]
    for _ in range(rounds):
        plan[~known] = _transport(_squared(values[~known], means))
        centres = plan.T @ values / plan.sum(0)[:, None]
        means = means + rate * (centres - means)
    distances = _squared(values, means)
    plan[~known] = _transport(distances[~known])
    plan[known] = softmax(-COSINE * distances[known])
    return np.asarray(plan / plan.sum(1, keepdims=True))


def _transport(distances: Floats, sharpness: float = 10.0, rounds: int = 100) -> Floats:
    """Sinkhorn: rows sum to 1, columns to equal shares of all rows."""
    plan: Floats = np.exp(-sharpness * (distances - distances.min(1, keepdims=True)))
    share = len(plan) / plan.shape[1]
    for _ in range(rounds):
        plan *= share / np.maximum(plan.sum(0), 1e-300)
        plan /= np.maximum(plan.sum(1, keepdims=True), 1e-300)
    return plan
