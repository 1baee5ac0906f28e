"""Cross-validation of data that is mostly unlabelled: labels are left out in turn, unlabelled rows never."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_random_state

from .labels import read_labels


class LabelledKFold(BaseCrossValidator):  # type: ignore[misc]
    """A scikit-learn splitter for ``y`` with unlabelled rows: the accuracy over left-out labels.

    Only labelled rows are tested, each once; unlabelled rows are always among those that are learned from. Folds are
    stratified: the labels of a class are spread evenly. The only label of a class is never left out, since the class
    could not be predicted without it. If fewer labels can be left out than there are folds, each is a fold of its own.

    Args:
        n_splits: folds, 2 or more.
        shuffle: whether to spread the labels of a class at random; by default in the order of the rows.
        random_state: of the shuffling.

    Example:
        >>> y = ["cat", "", "dog", "cat", "", "dog", "eel"]
        >>> for train, test in LabelledKFold(2).split(y, y):
        ...     print(train, test)
        [1 3 4 5 6] [0 2]
        [0 1 2 4 6] [3 5]
    """

    n_splits: int
    shuffle: bool
    random_state: Any

    def __init__(self, n_splits: int = 5, *, shuffle: bool = False, random_state: Any = None) -> None:
        if not isinstance(n_splits, Integral) or isinstance(n_splits, bool) or n_splits < 2:
            raise ValueError(f"n_splits must be a whole number from 2 on, got {n_splits!r}")
        self.n_splits, self.shuffle, self.random_state = int(n_splits), shuffle, random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: N803
        """The number of folds; for given labels there may be fewer than ``n_splits``."""
        return self.n_splits if y is None else min(self.n_splits, len(self._tested(y)))

    def _iter_test_indices(self, X: Any = None, y: Any = None, groups: Any = None) -> Iterator[NDArray[np.int64]]:  # noqa: N803
        rows = self._tested(y)
        count = min(self.n_splits, len(rows))
        return (np.sort(rows[number::count]) for number in range(count))

    def _tested(self, y: Any) -> NDArray[np.int64]:
        """Labelled rows of classes that have two or more, class by class: each next one is of the next fold."""
        labels, classes = read_labels(y, len(y) if y is not None else 0)
        shots = np.bincount(labels[labels >= 0], minlength=len(classes))
        rows = np.flatnonzero((labels >= 0) & (shots[labels] > 1))
        if not len(rows):
            raise ValueError("no class has two labels, so none can be left out: label more rows")
        if self.shuffle:
            rows = check_random_state(self.random_state).permutation(rows)
        return rows[np.argsort(labels[rows], kind="stable")]


__all__ = ["LabelledKFold"]
