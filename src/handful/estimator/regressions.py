"""Regressions on the labelled rows alone: linear, with a kernel, and logistic. Labels are class numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from sklearn.linear_model import LogisticRegression

from .rows import Floats

RIDGE = 0.3  # of the linear one, and of that with a kernel,
KERNEL = 4.0  # which is exp(KERNEL (cosine - 1))
C = 10.0  # of the logistic one
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class KernelRegression:
    """Unit vectors -> scores of the classes."""

    support: Floats  # (m, reduced)
    weights: Floats  # (m, classes)

    def __call__(self, rows: Floats) -> Floats:
        found: Floats = np.exp(KERNEL * (rows @ self.support.T - 1)) @ self.weights
        return found


@dataclass(frozen=True)
class Linear:
    """Rows -> scores of the classes."""

    weights: Floats  # (reduced, classes)
    offset: Floats  # (classes,)

    def __call__(self, rows: Floats) -> Floats:
        found: Floats = rows @ self.weights + self.offset
        return found

    def times(self, factor: float) -> Linear:
        return Linear(self.weights * self.weights.dtype.type(factor), self.offset * self.offset.dtype.type(factor))


def ridge(x: Floats, labels: Labels, classes: int) -> Linear:
    """A ridge regression with intercept, by as many equations as there are labelled rows."""
    gram = x.astype(np.float64) @ x.T + 1 + RIDGE * np.eye(len(x))
    weights = solve(gram, _targets(labels, classes), assume_a="pos", overwrite_a=True)
    return Linear((x.T @ weights).astype(x.dtype), weights.sum(0).astype(x.dtype))


def kernel_ridge(x: Floats, labels: Labels, classes: int) -> KernelRegression:
    """A kernel ridge regression on unit vectors."""
    gram = np.exp(KERNEL * (x.astype(np.float64) @ x.T - 1)) + RIDGE * np.eye(len(x))
    weights = solve(gram, _targets(labels, classes), assume_a="pos", overwrite_a=True)
    return KernelRegression(x, weights.astype(x.dtype))


def logistic(x: Floats, labels: Labels, classes: int) -> Linear:
    """A logistic regression; each class has a label.

    It is found step by step, and where the steps end depends on the order of the classes: they are put into that of
    their rows.
    """
    first = np.full(classes, np.inf)
    np.minimum.at(first, labels, x[:, 0])
    rank = np.argsort(np.argsort(first))
    rows = np.argsort(rank[labels], kind="stable")
    fitted = LogisticRegression(C=C, max_iter=500, tol=1e-5).fit(x[rows], rank[labels[rows]])
    weights, offset = fitted.coef_.T, fitted.intercept_
    if classes == 2:  # scikit-learn has one score then: by how much the second class is ahead
        weights, offset = weights * [-0.5, 0.5], offset * [-0.5, 0.5]
    return Linear(weights[:, rank].astype(x.dtype), offset[rank].astype(x.dtype))


def _targets(labels: Labels, classes: int) -> NDArray[np.float64]:
    return np.asarray(np.eye(classes)[labels] - 1 / classes)
