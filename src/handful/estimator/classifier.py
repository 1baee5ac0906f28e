"""`TACClassifier`: a scikit-learn classifier on embeddings that learns from unlabelled rows too."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from copy import copy
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
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
    leave_one_out,
    plain_space,
    softmax,
)
from .head import Head, load_head

OTHERS = 10  # clusters for what belongs to no class
FALSE_ALARMS = 0.1  # share of the labelled rows that may lie beyond the threshold of `is_none`
HARDEST = 1e30  # scale beyond which soft labels are no harder, and float32 ends
WHOLE = 1 << 53  # integers beyond it are not all numbers of float64


class TACClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Tell classes apart from a few labelled rows and many unlabelled ones.

    Classes are clusters of directions around their labelled rows. Each refinement labels the unlabelled rows softly, by
    their cosines with the clusters, and takes them into the clusters' means. With a head, rows are mapped first as was
    learned on other classes with the same embedder; if the head has references, cosines are taken in the task-adaptive
    space of TAC. Without one they are taken in the centred, normalised embedding space, the soft k-means end of the
    family.

    Args:
        head: None; the name of a head that comes with handful (that of its embedder, as ``"efficientnet-lite0"``); the
            path of one that ``handful head train`` made; or a :class:`handful.Head`.
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
        """Learn from labelled and unlabelled rows; if that fails, the estimator stays as it was.

        Args:
            X: (n_samples, n_features) float32 or float64; may be memory-mapped, and is neither copied nor changed.
                Only the direction of a row counts, not its length; a row of zeros has none.
            y: (n_samples,) labels. Unlabelled: -1 among numbers; None, NaN, -1 or "" among strings.
            none: (n_samples,) bool, rows that are known to belong to no class; their ``y`` must say unlabelled.
        """
        fitted = copy(self)
        fitted._fit(X, y, none)
        self.__dict__ = fitted.__dict__  # all at once, when nothing can fail any more
        return self

    def _fit(self, X: Any, y: Any, none: Any) -> None:  # noqa: N803
        iterations, scale, distractors = self._settings()
        X = validate_data(self, X, dtype=[np.float64, np.float32], order=None)  # noqa: N806
        labels, self.classes_ = read_labels(y, len(X))
        _mark_none(labels, none)
        head = None if self.head is None else load_head(self.head)
        if head is not None and head.features != X.shape[1]:
            raise ValueError(
                f"the head {head.name} is for embeddings of {head.features} features, but X has {X.shape[1]} features"
            )
        others = OTHERS if distractors or (labels == NONE).any() else 0
        self._frame = Frame.of(X) if head is None else head.frame(X)
        points = Points(X, self._frame)
        task = Task.of(points, labels, len(self.classes_))
        space = plain_space if head is None else head.space(task.total)
        self._clusters, self.n_iter_ = cluster(task, iterations, scale, others, space)
        self.none_threshold_ = _threshold(task, self._clusters)

        self.label_distributions_ = np.empty((len(X), len(self.classes_)), dtype=X.dtype)
        for rows, chances in _chances(points, self._clusters):
            self.label_distributions_[rows] = chances
        given = np.flatnonzero(labels >= 0)
        self.label_distributions_[given] = 0
        self.label_distributions_[given, labels[given]] = 1
        self.transduction_ = self.classes_[self.label_distributions_.argmax(1)]

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The label of each row; whether it is of any class at all is what :meth:`is_none` answers."""
        points = self._points(X)
        best = np.empty(len(points), dtype=np.int64)
        for rows, chances in _chances(points, self._clusters):
            best[rows] = chances.argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """(n_samples, n_classes): the probability of each class, if the row belongs to one of them."""
        points = self._points(X)
        found = np.empty((len(points), len(self.classes_)), dtype=points.x.dtype)
        for rows, chances in _chances(points, self._clusters):
            found[rows] = chances
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

    def _settings(self) -> tuple[int, float | None, bool]:
        if not isinstance(self.iterations, Integral) or isinstance(self.iterations, bool) or self.iterations < 0:
            raise ValueError(f"iterations must be a whole number from 0 on, got {self.iterations!r}")
        if not isinstance(self.distractors, (bool, np.bool_)):
            raise ValueError(f"distractors must be True or False, got {self.distractors!r}")
        if isinstance(self.scale, str) and self.scale == "auto":
            return int(self.iterations), None, bool(self.distractors)
        if not isinstance(self.scale, Real) or isinstance(self.scale, bool) or not 0 < self.scale < np.inf:
            raise ValueError(f"scale must be 'auto' or a number above 0, got {self.scale!r}")
        return int(self.iterations), min(float(self.scale), HARDEST), bool(self.distractors)

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803 - scikit-learn's name
        where = ", without a head: clusters in the centred, normalised embedding space" if self.head is None else ""
        return f"{super().__repr__(N_CHAR_MAX)}{where}"


def read_labels(y: Any, count: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Class ids with `FREE` for what is unlabelled, and the classes."""
    if y is None:
        raise ValueError("requires y to be passed, but the target y is None: give -1 for unlabelled rows")
    y = _as_given(y)
    if y.dtype.kind not in "OUSbiuf":
        raise ValueError(f"labels must be strings or whole numbers, got {y.dtype}")
    y = column_or_1d(y, warn=True)
    if len(y) != count:
        raise ValueError(f"X has {count} rows, but y has {len(y)} labels")
    if y.dtype.kind in "OUS":
        free = np.array([_is_blank(label) for label in y], dtype=bool)
    else:
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise ValueError("y has NaN or infinity: for unlabelled rows give -1")
        free = (y == -1) if y.dtype.kind != "b" else np.zeros(len(y), dtype=bool)
    known = y[~free]
    if len(known) == 0:
        raise ValueError("no row is labelled: y holds no class")
    if y.dtype.kind == "O":
        known = _of_one_kind(known)
    if known.dtype.kind == "f" and not (np.isfinite(known) & (known == np.floor(known))).all():
        raise ValueError("Unknown label type: continuous. Classes are strings or whole numbers, not fractions")
    classes, ids = np.unique(known, return_inverse=True)
    written = {"nan", "-1", "None"} & set(classes.tolist()) if y.dtype.kind == "U" else ()
    if written:
        warnings.warn(
            f"y has the class {min(written)!r}, which is what NumPy makes of a blank among strings: if these rows are "
            "unlabelled, give a list or an array of dtype=object",
            stacklevel=4,  # where fit was called
        )
    if len(classes) < 2:
        raise ValueError(f"needs at least two classes to tell apart, got one class: {classes[0]!r}")
    labels = np.full(len(y), FREE, dtype=np.int64)
    labels[~free] = ids
    return labels, classes


def _as_given(y: Any) -> NDArray[Any]:
    """Labels as an array in which each still is what it was: NumPy makes text of None, NaN and 1 among strings."""
    if isinstance(y, np.ma.MaskedArray):
        each = np.array(y, dtype=object)
        each[np.ma.getmaskarray(y)] = None
        return each
    found = np.asarray(y)
    if found.dtype.kind == "T":  # NumPy's strings of any length
        return found.astype(object)
    if isinstance(y, np.ndarray) or found.dtype.kind not in "USf":
        return found
    try:
        each = np.asarray(y, dtype=object)
    except TypeError:  # its __array__ knows no dtype
        return found
    return found if found.dtype.kind == "f" and _exact(each.flat) else each


def _of_one_kind(known: NDArray[np.object_]) -> NDArray[Any]:
    """Labels as an array of strings or of numbers: 1 and "1" are not the same class, and better not two."""
    kinds = {_kind(label) for label in known}
    if other := kinds - {str, bytes, Real}:
        raise ValueError(f"labels must be strings or whole numbers, got {min(kind.__name__ for kind in other)}")
    if len(kinds) > 1:
        raise ValueError("labels should be all strings or all numbers, got both")
    found = np.array(known.tolist())
    return known if found.dtype.kind == "f" and not _exact(known) else found


def _kind(label: Any) -> type:
    kinds: tuple[tuple[type, tuple[type, ...]], ...] = ((str, (str,)), (bytes, (bytes,)), (Real, (Real, np.bool_)))
    return next((kind for kind, those in kinds if isinstance(label, those)), type(label))


def _exact(labels: Iterable[Any]) -> bool:
    """Whether no number among these becomes another one in float64."""
    return not any(isinstance(label, Integral) and abs(int(label)) > WHOLE for label in labels)


def _is_blank(label: Any) -> bool:
    if label is None or (isinstance(label, (str, bytes)) and not label):
        return True
    if isinstance(label, Real) and not isinstance(label, bool):
        return bool(label == -1 or label != label)
    return type(label).__name__ in ("NAType", "NaTType")  # as pandas has them


def _mark_none(labels: NDArray[np.int64], none: Any) -> None:
    if none is None:
        return
    mask = np.asarray(none)
    if mask.shape != labels.shape or mask.dtype != bool:
        raise ValueError(f"none must be a bool for each of {len(labels)} rows, got {mask.dtype} of shape {mask.shape}")
    if (labels[mask] >= 0).any():
        raise ValueError("a row cannot be labelled and of no class: leave its label blank, or take it out of none")
    labels[mask] = NONE


def _passes(points: Points, clusters: Clusters) -> Iterator[tuple[slice, Floats]]:
    """All points, a chunk at a time: which rows, and their cosines with all clusters."""
    cosines = clusters.cosines(points)
    return ((rows, cosines(rows)) for rows in chunks(points.x, len(clusters.directions)))


def _chances(points: Points, clusters: Clusters) -> Iterator[tuple[slice, Floats]]:
    """All points, a chunk at a time: which rows, and the probabilities of their classes."""
    return ((rows, softmax(clusters.scale * found[:, : clusters.classes])) for rows, found in _passes(points, clusters))


def _threshold(task: Task, clusters: Clusters) -> float:
    """Of the none score, from the labelled rows, each judged by the clusters as they are without it."""
    scores = np.sort(np.concatenate([_none_scores(found, clusters) for found in leave_one_out(task, clusters)]))
    known = np.flatnonzero(task.labels == NONE)
    if not len(known):
        return float(scores[max(0, int(np.ceil((1 - FALSE_ALARMS) * len(scores))) - 1)])
    cosines, parts = clusters.cosines(task.points), chunks(task.points.x, len(clusters.directions), len(known))
    theirs = np.sort(np.concatenate([_none_scores(cosines(known[part]), clusters) for part in parts]))
    values = np.unique(np.concatenate([scores, theirs, [0.0, 1.0]]))
    cuts = (values[1:] + values[:-1]) / 2  # between the two, where both are judged best
    beyond, within = len(scores) - np.searchsorted(scores, cuts, "right"), np.searchsorted(theirs, cuts, "right")
    wrong = beyond / len(scores) + within / len(theirs)
    return float(np.median(cuts[wrong == wrong.min()]))


def _none_scores(cosines: Floats, clusters: Clusters) -> Floats:
    """From cosines with all clusters (n, clusters): the share of the clusters of no class, or distance from all."""
    if cosines.shape[1] > clusters.classes:
        shares: Floats = softmax(clusters.scale * cosines)[:, clusters.classes :].sum(1)
        return shares
    nearest: Floats = cosines.max(1)
    return (1 - nearest.clip(-1, 1)) / 2
