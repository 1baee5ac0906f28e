"""The rivals of the comparison: each against its formula or a property of its paper, and what is true of all."""

from __future__ import annotations

import numpy as np
import pytest

from handful.estimator.rivals import bd_cspn, compared, laplacian_shot, nearest_mean, pt_map, tuned, unit

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
    chances = compared()[name](x, given, CLASSES)
    assert chances.shape == (90, CLASSES)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    assert (chances.argmax(1) == truth)[given < 0].mean() > 0.6


@pytest.mark.parametrize("name", compared())
def test_the_order_of_classes_and_rows_does_not_matter(task, name):
    x, given, _ = task
    rows, names = np.random.default_rng(1).permutation(90), np.array([2, 0, 1])
    first = compared()[name](x, given, CLASSES).argmax(1)
    second = compared()[name](x[rows], np.where(given < 0, -1, names[given])[rows], CLASSES).argmax(1)
    assert (names[first][rows] == second).mean() > 0.97, "but for ties and folds"


def test_the_setting_that_names_hidden_labels_best_is_taken(task):
    x, given, truth = task
    right = np.eye(CLASSES)[truth]
    chosen = tuned({"bad": lambda *_: np.roll(right, 1, axis=1), "good": lambda *_: right})
    assert (chosen(x, given, CLASSES) == right).all()
    single = np.where(np.arange(90) % 30 < 1, truth, -1)
    assert (chosen(x, single, CLASSES) == np.roll(right, 1, axis=1)).all(), "the first, where none can be hidden"


def test_without_neighbours_laplacian_shot_is_the_nearest_mean(task):
    x, given, _ = task
    rows = unit(x)
    means = np.stack([rows[given == k].mean(0) for k in range(CLASSES)])
    nearest = ((rows[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (laplacian_shot(rows, given, CLASSES, weight=0.0).argmax(1) == nearest).all()


def test_pt_map_shares_the_rows_out_evenly(task):
    x, given, _ = task
    soft = pt_map(x, given, CLASSES)[given < 0]
    np.testing.assert_allclose(soft.sum(0), 84 / CLASSES, rtol=0.02)


def test_bd_cspn_with_labelled_rows_only_is_the_nearest_mean_of_moved_rows(task):
    x, _, truth = task
    rows, given = unit(x), np.where(np.arange(90) % 30 == 0, truth, -1)
    moved = rows.copy()
    moved[given < 0] += rows[given >= 0].mean(0) - rows[given < 0].mean(0)
    expected = nearest_mean(unit(moved), given, CLASSES).argmax(1)
    assert (bd_cspn(rows, given, CLASSES, most=0).argmax(1) == expected).all()
