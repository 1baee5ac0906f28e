"""The rivals of the comparison: each against its formula or a property of its paper, and what is true of all."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.covariance import ledoit_wolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from handful import HandfulError
from handful.estimator.rivals import (
    bd_cspn,
    choose,
    compared,
    knn_spreading,
    laplacian_shot,
    lda,
    logistic,
    nearest_mean,
    neighbours,
    pt_map,
    rbf_spreading,
    self_training,
    tuned,
)
from handful.estimator.shared import Shared, unit

CLASSES = 3


@pytest.fixture(scope="module")
def task():
    """Three clouds that overlap, two labels each."""
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(CLASSES), 30)
    x = np.abs(rng.normal(size=(CLASSES, 20)))[truth] + 0.6 * np.abs(rng.normal(size=(90, 20)))
    given = np.where(np.arange(90) % 30 < 2, truth, -1)
    return x.astype(np.float32), given.astype(np.int64), truth


@pytest.mark.parametrize("name", compared())
def test_every_rival_gives_probabilities_and_is_better_than_chance(task, name):
    x, given, truth = task
    chances = compared()[name](Shared.of(x), given, CLASSES)
    assert chances.shape == (90, CLASSES)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    assert (chances.argmax(1) == truth)[given < 0].mean() > 0.6


@pytest.mark.parametrize("name", compared())
def test_the_order_of_classes_and_rows_does_not_matter(task, name):
    x, given, _ = task
    rows, names = np.random.default_rng(1).permutation(90), np.array([2, 0, 1])
    first = compared()[name](Shared.of(x), given, CLASSES).argmax(1)
    second = compared()[name](Shared.of(x[rows]), np.where(given < 0, -1, names[given])[rows], CLASSES).argmax(1)
    assert (names[first][rows] == second).mean() > 0.97, "but for ties and folds"


def test_the_setting_that_names_hidden_labels_best_is_taken(task):
    x, given, truth = task
    right = np.eye(CLASSES)[truth]
    answers = {"bad": np.roll(right, 1, axis=1), "good": right}
    chosen = tuned(lambda shared, given, classes, names: [answers[name] for name in names], ("bad", "good"))
    assert (chosen(Shared.of(x), given, CLASSES) == right).all()
    single = np.where(np.arange(90) % 30 < 1, truth, -1)
    assert (chosen(Shared.of(x), single, CLASSES) == answers["bad"]).all(), "the first, where none can be hidden"


def test_the_families_say_what_scikit_learn_says(task):
    """They share what does not depend on labels, and start from one another; the answers are the same."""
    x, given, _ = task
    shared, known = Shared.of(x), given >= 0
    rows = shared.rows.astype(np.float64)
    for c, chances in zip((10, 0.1), logistic(shared, given, CLASSES, (10, 0.1)), strict=True):
        model = LogisticRegression(C=c, tol=1e-7, max_iter=1000).fit(rows[known], given[known])
        np.testing.assert_allclose(chances, model.predict_proba(rows), atol=0.01)
    for k, chances in zip((1, 3), neighbours(shared, given, CLASSES, (1, 3)), strict=True):
        model = KNeighborsClassifier(k, weights="distance").fit(rows[known], given[known])
        np.testing.assert_allclose(chances[~known], model.predict_proba(rows)[~known], atol=1e-4)
    for alpha, chances in zip((0.2, 0.8), knn_spreading(shared, given, CLASSES, (0.2, 0.8)), strict=True):
        model = LabelSpreading(kernel="knn", n_neighbors=10, alpha=alpha, max_iter=100).fit(rows, given)
        np.testing.assert_allclose(chances, model.label_distributions_, atol=0.01)
    for gamma, chances in zip((5, 1), rbf_spreading(shared, given, CLASSES, (5, 1)), strict=True):
        model = LabelSpreading(kernel="rbf", gamma=gamma, max_iter=100, tol=1e-8).fit(rows, given)
        np.testing.assert_allclose(chances, model.label_distributions_, atol=1e-3)
    settings = ((10, 0.75), (10, 0.6))
    for (c, threshold), chances in zip(settings, self_training(shared, given, CLASSES, settings), strict=True):
        model = SelfTrainingClassifier(LogisticRegression(C=c, tol=1e-7, max_iter=1000), threshold=threshold)
        np.testing.assert_allclose(chances, model.fit(rows, given).predict_proba(rows), atol=0.02)


def test_lda_is_scikit_learn_s_with_one_covariance(task):
    x, given, _ = task
    shared, known = Shared.of(x), given >= 0
    rows = shared.reduced.astype(np.float64)
    half, auto = lda(shared, given, CLASSES, (0.5, "auto"))
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.5, priors=np.full(CLASSES, 1 / CLASSES))
    np.testing.assert_allclose(half, model.fit(rows[known], given[known]).predict_proba(rows), atol=1e-4)
    means = np.stack([rows[given == k].mean(0) for k in range(CLASSES)])
    covariance, _ = ledoit_wolf(rows[known] - means[given[known]], assume_centered=True)
    logits = rows @ np.linalg.solve(covariance, means.T) - 0.5 * np.einsum(
        "ki,ik->k", means, np.linalg.solve(covariance, means.T)
    )
    assert (auto.argmax(1) == logits.argmax(1)).all()


def test_rivals_are_chosen_by_parts_of_their_names():
    assert list(choose("pt-map, LOGISTIC")) == ["LogisticRegression", "SelfTraining(LogisticRegression)", "PT-MAP"]
    assert choose("") == {}
    with pytest.raises(HandfulError, match="no rival's name contains 'forest'"):
        choose("lda,forest")


def test_without_neighbours_laplacian_shot_is_the_nearest_mean(task):
    x, given, _ = task
    rows = unit(x)
    means = np.stack([rows[given == k].mean(0) for k in range(CLASSES)])
    nearest = ((rows[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (laplacian_shot(Shared(x, rows), given, CLASSES, (0.0,))[0].argmax(1) == nearest).all()


def test_pt_map_shares_the_rows_out_evenly(task):
    x, given, _ = task
    soft = pt_map(Shared.of(x), given, CLASSES)[given < 0]
    np.testing.assert_allclose(soft.sum(0), 84 / CLASSES, rtol=0.02)


def test_bd_cspn_with_labelled_rows_only_is_the_nearest_mean_of_moved_rows(task):
    x, _, truth = task
    rows, given = unit(x), np.where(np.arange(90) % 30 == 0, truth, -1)
    moved = rows.copy()
    moved[given < 0] += rows[given >= 0].mean(0) - rows[given < 0].mean(0)
    expected = nearest_mean(Shared(x, unit(moved)), given, CLASSES).argmax(1)
    assert (bd_cspn(Shared(x, rows), given, CLASSES, most=0).argmax(1) == expected).all()
