"""Regressions on the labelled rows: they are those of the textbook, in any order of rows and classes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression

from handful import TACClassifier
from handful.estimator.regressions import KERNEL, RIDGE, C, kernel_ridge, logistic, ridge


def rows(classes: int, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(count) % classes
    x = rng.normal(size=(classes, 8))[labels] + rng.normal(size=(count, 8))
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels


def test_ridge_is_that_of_scikit_learn_with_a_constant_feature():
    x, labels = rows(4)
    other = KernelRidge(alpha=RIDGE).fit(np.c_[x, np.ones(60)], np.eye(4)[labels] - 1 / 4)
    np.testing.assert_allclose(ridge(x, labels, 4)(x), other.predict(np.c_[x, np.ones(60)]), atol=1e-10)


def test_kernel_ridge_is_that_of_scikit_learn():
    x, labels = rows(4)
    other = KernelRidge(alpha=RIDGE, kernel="rbf", gamma=KERNEL / 2).fit(x, np.eye(4)[labels] - 1 / 4)
    np.testing.assert_allclose(kernel_ridge(x, labels, 4)(x), other.predict(x), atol=1e-10)


@pytest.mark.parametrize("classes", [2, 5])
def test_logistic_regression_is_that_of_scikit_learn(classes):
    x, labels = rows(classes)
    scores = logistic(x, labels, classes)(x)
    odds = np.exp(scores - scores.max(1, keepdims=True))
    other = LogisticRegression(C=C, tol=1e-9, max_iter=2000).fit(x, labels)
    np.testing.assert_allclose(odds / odds.sum(1, keepdims=True), other.predict_proba(x), atol=1e-3)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_order_of_classes_only_turns_the_scores(classes):
    x, labels = rows(classes)
    turned = np.random.default_rng(1).permutation(classes)
    one, other = logistic(x, labels, classes)(x), logistic(x, turned[labels], classes)(x)
    np.testing.assert_array_equal(other[:, turned], one)


def uneven(noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten classes from 200 rows to 10, of which up to ten are labelled; and their labels, and those given."""
    rng = np.random.default_rng(2)
    truth = np.repeat(np.arange(10), np.geomspace(200, 10, 10).astype(int))
    x = rng.normal(size=(10, 64))[truth] + noise * rng.normal(size=(len(truth), 64)) + 1
    place = np.concatenate([np.arange(count) for count in np.bincount(truth)])
    return x, truth, np.where(place < np.minimum(10, np.bincount(truth)[truth] // 2), truth, -1)


def test_uneven_classes_that_do_not_cluster_are_told_apart_by_the_labels():
    x, truth, y = uneven(3.0)
    model = TACClassifier(distractors=False).fit(x, y)
    assert model._model.doubt > 0.2
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    other = LogisticRegression(C=C, max_iter=500).fit(unit[y >= 0], y[y >= 0])
    rest = y < 0
    assert (model.transduction_ == truth)[rest].mean() >= (other.predict(unit) == truth)[rest].mean() - 0.01


def test_classes_that_cluster_need_no_logistic_regression():
    x, _, y = uneven(0.3)
    assert TACClassifier(distractors=False).fit(x, y)._model.doubt == 0
