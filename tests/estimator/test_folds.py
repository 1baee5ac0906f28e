"""Cross-validation with unlabelled rows: which rows are tested, and that scikit-learn's functions take it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, cross_validate

from handful import LabelledKFold, TACClassifier

ROOT = Path(__file__).parents[2]


def mostly_unlabelled() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Digits, five labels of most classes, two of one and one of another."""
    x, truth = load_digits(return_X_y=True)
    x, truth = x[:600], truth[:600]
    y = np.full(600, -1)
    for label in range(10):
        y[np.flatnonzero(truth == label)[: {3: 2, 7: 1}.get(label, 5)]] = label
    return x, y, truth


def as_words(y: np.ndarray) -> np.ndarray:
    return np.array([f"digit {label}" if label >= 0 else "" for label in y], dtype=object)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("form", [lambda y: y, as_words, list, lambda y: as_words(y).tolist()])
def test_every_label_that_can_be_left_out_is_tested_once(form, shuffle):
    x, y, _ = mostly_unlabelled()
    given, splitter = form(y), LabelledKFold(4, shuffle=shuffle, random_state=0 if shuffle else None)
    folds = list(splitter.split(x, given))
    assert len(folds) == splitter.get_n_splits(x, given) == 4
    tested = np.concatenate([test for _, test in folds])
    assert sorted(tested) == np.flatnonzero((y >= 0) & (y != 7)).tolist()
    for train, test in folds:
        assert not set(train) & set(test) and len(train) + len(test) == 600
        assert set(np.flatnonzero(y < 0)) <= set(train), "unlabelled rows are always learned from"
        assert set(y[train]) == set(y), "no class loses its last label"
        counts = np.bincount(y[test], minlength=10)
        assert len(test) in (10, 11) and counts.max() <= 2 and counts[7] == 0, "stratified"


def test_the_score_is_the_accuracy_over_left_out_labels():
    x, y, _ = mostly_unlabelled()
    folds = list(LabelledKFold().split(x, y))
    right = [(TACClassifier().fit(x[train], y[train]).predict(x[test]) == y[test]).mean() for train, test in folds]
    scores = cross_val_score(TACClassifier(), x, y, cv=LabelledKFold())
    np.testing.assert_allclose(scores, right)
    assert len(scores) == 5 and scores.mean() > 0.8
    np.testing.assert_allclose(cross_val_score(TACClassifier(), x, as_words(y), cv=LabelledKFold()), scores)


def test_other_functions_of_scikit_learn():
    x, y, _ = mostly_unlabelled()
    search = GridSearchCV(TACClassifier(), {"iterations": [0, 6]}, cv=LabelledKFold(2)).fit(x, y)
    assert search.best_params_["iterations"] in (0, 6) and len(search.predict(x)) == 600
    found = cross_validate(TACClassifier(), x, as_words(y), cv=LabelledKFold(2), scoring="balanced_accuracy")
    assert (found["test_score"] > 0.5).all()
    with pytest.raises(ValueError, match="only works for partitions"):
        cross_val_predict(TACClassifier(), x, y, cv=LabelledKFold(2))
    assert repr(LabelledKFold(3)) == "LabelledKFold(n_splits=3, random_state=None, shuffle=False)"


def test_few_labels():
    y = np.array([0, 0, 1, 1, -1, -1, 2])
    assert LabelledKFold(5).get_n_splits(y, y) == 4 and LabelledKFold(5).get_n_splits() == 5
    assert [test.tolist() for _, test in LabelledKFold(5).split(y, y)] == [[0], [1], [2], [3]]
    with pytest.raises(ValueError, match="no class has two labels, so none can be left out"):
        list(LabelledKFold().split(y[:2], np.array([0, 1])))
    with pytest.raises(ValueError, match="no row is labelled"):
        list(LabelledKFold().split(y, np.full(7, -1)))
    with pytest.raises(ValueError, match="requires y to be passed"):
        list(LabelledKFold().split(y))
    for wrong in (1, 0, 2.5, True, "5"):
        with pytest.raises(ValueError, match="n_splits must be a whole number from 2 on"):
            LabelledKFold(wrong)


def test_the_same_folds_for_the_same_seed():
    x, y, _ = mostly_unlabelled()
    first, again, other = ([test.tolist() for _, test in LabelledKFold(shuffle=True, random_state=seed).split(x, y)]
                           for seed in (0, 0, 1))  # fmt: skip
    assert first == again != other


def test_the_example_of_the_documentation_runs():
    page = (ROOT / "docs" / "estimator.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", page.partition("## Cross-validation")[2], re.MULTILINE | re.DOTALL)[
        :1
    ]
    names: dict = {}
    exec(compile(block, "estimator.md", "exec"), names)
    assert names["scores"].mean() > 0.8
