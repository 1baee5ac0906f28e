"""The comparison with scikit-learn's classifiers: what a task holds, and that each is judged by the same ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from handful import HandfulError
from handful.cli import app
from handful.estimator.compare import compare
from handful.estimator.tasks import TaskKind, draw_tasks, with_spare


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(8), 40)
    return (rng.normal(size=(8, 24))[labels] + rng.normal(size=(320, 24)) + 1).astype(np.float32), labels


def test_what_a_task_holds(rows):
    _, labels = rows
    kind = TaskKind(4, 2, unlabelled=15, others=0.4)
    assert str(kind) == "4-way, 2 labels a class, 40% of other classes"
    for task in draw_tasks(labels, kind, 5, seed=0):
        assert len(set(task.rows)) == len(task.rows) == 4 * 17 + 40
        assert (np.bincount(task.given[task.given >= 0]) == 2).all()
        assert (task.truth[task.given >= 0] == task.given[task.given >= 0]).all()
        for label in range(4):
            (name,) = set(labels[task.rows[task.truth == label]])
            assert name not in labels[task.rows[task.truth == -1]]
        assert (task.truth == -1).sum() == round(0.4 * (task.given < 0).sum())


def test_a_task_of_all_classes_has_others_from_elsewhere(rows):
    x, labels = rows
    first, last = labels < 6, labels >= 6
    joined, names, spare = with_spare((x[first], labels[first]), (x[last], labels[last] - 6))
    np.testing.assert_array_equal(joined, x)
    np.testing.assert_array_equal(names, labels)
    for task in draw_tasks(names, TaskKind(6, 1, unlabelled=10, others=0.4), 5, seed=0, spare=spare):
        assert set(labels[task.rows[task.truth >= 0]]) == set(range(6))
        assert set(labels[task.rows[task.truth == -1]]) == {6, 7}
        assert (task.truth == -1).sum() == 40


def test_all_are_judged_by_the_same_tasks(rows):
    x, labels = rows
    kind = TaskKind(4, 2, unlabelled=15)
    found = {row["classifier"]: row for row in compare(x, labels, kind, None, draws=6, jobs=1)}
    assert list(found) == ["TACClassifier", "LabelSpreading", "SelfTrainingClassifier(LogisticRegression)",
                           "LogisticRegression", "nearest class mean"]  # fmt: skip
    accuracies = []
    for c in (1, 10, 100):
        right = []
        for task in draw_tasks(labels, kind, 6, seed=0):
            unit = x[task.rows] / np.linalg.norm(x[task.rows], axis=1, keepdims=True)
            unit -= unit.mean(0)
            unit /= np.linalg.norm(unit, axis=1, keepdims=True)
            known = task.given >= 0
            model = LogisticRegression(C=c).fit(unit[known], task.given[known])
            right.append((model.predict(unit[~known]) == task.truth[~known]).mean())
        accuracies.append(100 * np.mean(right))
    assert found["LogisticRegression"]["accuracy"] == pytest.approx(max(accuracies))
    assert all(row["auroc"] is None for row in found.values())
    assert found["TACClassifier"]["accuracy"] > found["nearest class mean"]["accuracy"]


def test_rows_of_other_classes_are_found(rows):
    x, labels = rows
    found = {row["classifier"]: row for row in compare(x, labels, TaskKind(4, 5, 15, 0.4), None, draws=4, jobs=1)}
    assert all(50 < row["auroc"] <= 100 for row in found.values())
    with pytest.raises(HandfulError, match="needs more than the 8 classes"):
        compare(x, labels, TaskKind(8, 1, others=0.4), None, draws=2, jobs=1)


@pytest.mark.slow
def test_the_command(capsys):
    words = ["head", "evaluate", "--embedder", "conv4:glyphs", "--dataset", "glyphs", "--ways", "5", "--shots", "1",
             "--unlabelled", "10", "--draws", "2", "--jobs", "1", "--device", "cpu", "--json"]  # fmt: skip
    app(words, standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert [row["task"] for row in found] == ["5-way, 1 label a class"] * 5
