"""Labels are spread evenly over classes that are not: what is said of all rows must not go by the labels alone."""

from __future__ import annotations

import numpy as np
import pytest

from handful import TACClassifier


def task(seed: int, others: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ten classes from 400 rows to 20, eight of each labelled, and rows of a few others: rows, classes (-1), labels."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(10), np.geomspace(400, 20, 10).astype(int))
    centres = rng.normal(size=(14, 64))
    place = np.concatenate([np.arange(count) for count in np.bincount(truth)])
    y = np.where(place < 8, truth, -1)
    foreign = 10 + np.arange(others) % 4
    x = centres[np.concatenate([truth, foreign])] + 1.5 * rng.normal(size=(len(truth) + others, 64)) + 1
    return x, np.concatenate([truth, np.full(others, -1)]), np.concatenate([y, np.full(others, -1)])


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_large_classes_are_not_taken_for_none_of_these(seed):
    """Counted as labels are, they would look foreign: a fifth to a third of them was flagged."""
    x, truth, y = task(seed)
    model = TACClassifier().fit(x, y)
    rest = y < 0
    flagged = model.is_none(x[rest])
    assert flagged.mean() <= 0.2 and model.none_share_ <= 0.25
    right = (model.transduction_[rest] == truth[rest]) & ~flagged
    low, high = model.expected_accuracy_interval_
    assert low <= right.mean() <= high


def test_rows_of_no_class_are_found_beside_uneven_classes():
    x, truth, y = task(0, others=800)
    model = TACClassifier().fit(x, y)
    rest = y < 0
    flagged = model.is_none(x[rest])
    assert flagged[truth[rest] < 0].mean() > 0.8 and flagged[truth[rest] >= 0].mean() < 0.2


def test_classes_count_by_their_sizes_only_if_there_are_labels_to_know_them():
    x, _, y = task(0)
    weights = {}
    for shots in (2, 8):
        kept = y.copy()
        for label in range(10):
            kept[np.flatnonzero(y == label)[shots:]] = -1
        judge = TACClassifier().fit(x, kept)._judge
        weights[shots] = judge.weights.max() / judge.weights.min()
        assert judge.weights.sum() == pytest.approx(1)
    assert 1 < weights[2] <= weights[8]
