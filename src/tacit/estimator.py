"""`TACClassifier`: a scikit-learn classifier on embeddings that learns from unlabelled rows too."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from .clustering import (
    FREE,
    NONE,
    Clusters,
    Floats,
    Frame,
    Points,
    Task,
    chunks,
    cluster,
    plain_space,
    softmax,
    without_itself,
)
from .heads import Head, load_head

OTHERS = 10  # clusters for what belongs to no class
FALSE_ALARMS = 0.1  # share of the labelled rows that may lie beyond the threshold of `is_none`


class TACClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Tell classes apart from a few labelled rows and many unlabelled ones.

    Classes are clusters of directions around their labelled rows. Each refinement labels the unlabelled rows softly, by
    their cosines with the clusters, and takes them into the clusters' means. With a head, rows are mapped first as was
    learned on other classes with the same embedder; if the head has references, cosines are taken in the task-adaptive
    space of TAC. Without one they are taken in the centred, normalised embedding space, the soft k-means end of the
    family.

    Args:
        head: None; the name of a head that comes with tacit (that of its embedder, as ``"efficientnet-lite0"``); the
            path of one that ``tacit head train`` made; or a :class:`tacit.Head`.
        iterations: refinements, at most; it stops when no row changes its class.
        distractors: whether unlabelled rows may belong to no class. Then further clusters compete for them.
        scale: of the cosines in the soft labels; ``"auto"`` sets it so that a row's best class is clearly ahead, on
            average.
        random_state: for the sake of the convention: nothing is drawn at random.

    Attributes:
        classes_: the labels, sorted.
        transduction_: (n_samples,) the given or found label of each row of ``fit``.
        label_distributions_: (n_samples, n_classes) the same as probabilities.
        n_iter_: refinements that were needed.
        none_threshold_: rows with a larger ``none_score`` are of no class. It lies where at most a tenth of the
            labelled rows are beyond it, each judged without its own help.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.

    Example:
        >>> import numpy as np
        >>> X = np.array([[4.0, 1, 0], [1, 4, 0], [5, 1, 1], [4, 0, 1], [0, 5, 1], [1, 4, 1]])
        >>> y = np.array(["cat", "dog", "", "", "", ""], dtype=object)  # or -1 among integers
        >>> TACClassifier().fit(X, y).transduction_.tolist()
        ['cat', 'dog', 'cat', 'cat', 'dog', 'dog']
    """

    def __init__(
        self,
        head: str | Head | None = None,
        *,
        iterations: int = 6,
        distractors: bool = False,
        scale: float | str = "auto",
        random_state: Any = None,
    ) -> None:
        self.head = head
        self.iterations = iterations
        self.distractors = distractors
        self.scale = scale
        self.random_state = random_state

    def fit(self, X: Any, y: Any, none: Any = None) -> TACClassifier:  # noqa: N803 - scikit-learn's name
        """Learn from labelled and unlabelled rows.

        Args:
            X: (n_samples, n_features) float32 or float64; may be memory-mapped, and is neither copied nor changed.
            y: (n_samples,) labels. Unlabelled: -1 among numbers; None, NaN or "" among strings.
            none: (n_samples,) bool, rows that are known to belong to no class; their ``y`` must say unlabelled.
        """
        iterations, scale = self._settings()
        X = validate_data(self, X, dtype=[np.float64, np.float32], order=None)  # noqa: N806
        labels, self.classes_ = _read_labels(y, len(X))
        _mark_none(labels, none)
        head = None if self.head is None else load_head(self.head)
        if head is not None and head.features != X.shape[1]:
            raise ValueError(
                f"the head {head.name} is for embeddings of {head.features} features, but X has {X.shape[1]} features"
            )
        others = OTHERS if self.distractors or (labels == NONE).any() else 0
        self._head = head
        self._frame = Frame.of(X) if head is None else head.frame(X)
        points = Points(X, self._frame)
        task = Task.of(points, labels, len(self.classes_))
        space = plain_space if head is None else head.space(task.total)
        self._clusters, self.n_iter_ = cluster(task, iterations, scale, others, space)
        self._fit_threshold(task)

        self.label_distributions_ = np.empty((len(X), len(self.classes_)), dtype=X.dtype)
        for rows, cosines in _passes(points, self._clusters):
            self.label_distributions_[rows] = softmax(self._clusters.scale * cosines[:, : len(self.classes_)])
        given = np.flatnonzero(labels >= 0)
        self.label_distributions_[given] = np.eye(len(self.classes_), dtype=X.dtype)[labels[given]]
        self.transduction_ = self.classes_[self.label_distributions_.argmax(1)]
        return self

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The label of each row; whether it is of any class at all is what :meth:`is_none` answers."""
        best = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """(n_samples, n_classes): the probability of each class, if the row belongs to one of them."""
        points = self._points(X)
        found = np.empty((len(points), len(self.classes_)), dtype=points.x.dtype)
        for rows, cosines in _passes(points, self._clusters):
            found[rows] = softmax(self._clusters.scale * cosines[:, : len(self.classes_)])
        return found

    def none_score(self, X: Any) -> Floats:  # noqa: N803
        """(n_samples,) from 0 to 1: how much speaks for "none of these"."""
        points = self._points(X)
        found = np.empty(len(points), dtype=points.x.dtype)
        for rows, cosines in _passes(points, self._clusters):
            found[rows] = _none_scores(cosines, self._clusters)
        return found

    def is_none(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """(n_samples,) bool: rows that belong to no class."""
        scores = self.none_score(X)
        beyond: NDArray[np.bool_] = scores > self.none_threshold_
        return beyond

    def unit_vectors(self, X: Any) -> Floats:  # noqa: N803
        """(n_samples, dim): rows as they are clustered, centred (or mapped by the head) and of unit length."""
        return self._points(X).vectors(slice(None))

    def _points(self, X: Any) -> Points:  # noqa: N803
        check_is_fitted(self, "classes_")
        X = validate_data(self, X, dtype=[np.float64, np.float32], order=None, reset=False)  # noqa: N806
        return Points(X, self._frame)

    def _settings(self) -> tuple[int, float | None]:
        if not isinstance(self.iterations, Integral) or self.iterations < 0:
            raise ValueError(f"iterations must be a whole number from 0 on, got {self.iterations!r}")
        if self.scale == "auto":
            return int(self.iterations), None
        if not isinstance(self.scale, Real) or not 0 < self.scale < np.inf:
            raise ValueError(f"scale must be 'auto' or a number above 0, got {self.scale!r}")
        return int(self.iterations), float(self.scale)

    def _fit_threshold(self, task: Task) -> None:
        """From the labelled rows, each judged by the clusters as they are without it."""
        scores = np.sort(
            np.concatenate([_none_scores(found, self._clusters) for found in without_itself(task, self._clusters)])
        )
        self.none_threshold_ = float(scores[max(0, int(np.ceil((1 - FALSE_ALARMS) * len(scores))) - 1)])
        known = np.flatnonzero(task.labels == NONE)
        if len(known):  # between the two, where both are judged best
            theirs = _none_scores(self._clusters.cosines(task.points)(known), self._clusters)
            values = np.unique(np.concatenate([scores, theirs, [0.0, 1.0]]))
            cuts = (values[1:] + values[:-1]) / 2
            wrong = np.array([(scores > cut).mean() + (theirs <= cut).mean() for cut in cuts])
            self.none_threshold_ = float(np.median(cuts[wrong == wrong.min()]))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803 - scikit-learn's name
        where = ", without a head: clusters in the centred, normalised embedding space" if self.head is None else ""
        return f"{super().__repr__(N_CHAR_MAX)}{where}"


def _read_labels(y: Any, count: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Class ids with `FREE` for what is unlabelled, and the classes."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None: give -1 for unlabelled rows")
    y = column_or_1d(np.asarray(y), warn=True)
    if len(y) != count:
        raise ValueError(f"X has {count} rows, but y has {len(y)} labels")
    if y.dtype.kind in "OUS":
        free = np.array([_is_blank(label) for label in y], dtype=bool)
    else:
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise ValueError("y has NaN or infinity: for unlabelled rows give -1")
        free = (y == -1) if y.dtype.kind != "b" else np.zeros(len(y), dtype=bool)
    known = y[~free]
    if y.dtype.kind == "O":
        kinds = {str if isinstance(label, str) else float for label in known}
        if len(kinds) > 1:
            raise TypeError("labels should be all strings or all numbers, got both")
        known = known.astype(str) if kinds == {str} else np.array(known.tolist() or [], dtype=float)
    if len(known) == 0:
        raise ValueError("no row is labelled: y holds no class")
    check_classification_targets(known)
    if y.dtype.kind == "O" and known.dtype.kind == "f":
        known = np.array(y[~free].tolist())
    classes, ids = np.unique(known, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"needs at least two classes to tell apart, got one class: {classes[0]!r}")
    labels = np.full(len(y), FREE, dtype=np.int64)
    labels[~free] = ids
    return labels, classes


def _is_blank(label: Any) -> bool:
    if label is None or (isinstance(label, str) and label == ""):
        return True
    if isinstance(label, (float, np.floating)):
        return bool(np.isnan(label))
    return isinstance(label, (int, np.integer)) and not isinstance(label, bool) and label == -1


def _mark_none(labels: NDArray[np.int64], none: Any) -> None:
    if none is None:
        return
    mask = np.asarray(none)
    if mask.shape != labels.shape or mask.dtype != bool:
        raise ValueError(f"none must be a bool for each of {len(labels)} rows, got {mask.dtype} of shape {mask.shape}")
    if (labels[mask] >= 0).any():
        raise ValueError("a row cannot be labelled and of no class: leave its label blank, or take it out of none")
    labels[mask] = NONE


def _passes(points: Points, clusters: Clusters) -> Any:
    cosines = clusters.cosines(points)
    return ((rows, cosines(rows)) for rows in chunks(points.x))


def _none_scores(cosines: Floats, clusters: Clusters) -> Floats:
    """From cosines with all clusters (n, clusters): the share of the clusters of no class, or distance from all."""
    if cosines.shape[1] > clusters.classes:
        shares: Floats = softmax(clusters.scale * cosines)[:, clusters.classes :].sum(1)
        return shares
    nearest: Floats = cosines.max(1)
    return (1 - nearest.clip(-1, 1)) / 2
