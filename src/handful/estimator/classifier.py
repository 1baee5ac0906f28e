"""`TACClassifier`: a scikit-learn classifier on embeddings that learns from unlabelled rows too."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from ..embedders.origin import Origin
from .confidence import Accuracy, class_sizes, expected_accuracy
from .foreign import judge
from .given import read_rows
from .head import Head, load_head
from .labels import mark_none, read_labels
from .refinement import CELLS, CROWD, REFINED, Model, Settings, Task, refine, temperature
from .rows import NONE, Floats, Frame, chunks, softmax, unit
from .saved import load_attributes, save_attributes
from .space import Space, View, evenly, see

HARDEST = 1e30  # scale beyond which soft labels are no harder, and float32 ends
LEAST_CROWD, MOST_CROWD = 1.0, 50.0  # labels that the unlabelled rows of a class can count as
CALIBRATED = 2000  # rows by which the confidence is set


class TACClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Tell classes apart from a few labelled rows and many unlabelled ones.

    Rows (X) are raw vectors of an embedder, as :func:`handful.embed` gives them, in all methods. What the classifier
    makes of them, mapped vectors of another space, is what :meth:`unit_vectors` returns.

    Task-adaptive clustering (TAC): each refinement labels the unlabelled rows softly, adapts the space to these soft
    labels, and finds the class means in it. With a head that has references, the space is TAC's projection; without
    one, it is whitened by the covariance within the soft classes (:mod:`handful.estimator.refinement`). How much
    unlabelled rows count, whether classes are even, how sure to be and whether there are rows of no class is set from
    the data.

    Args:
        head: None; the name of a head that comes with handful (that of its embedder, as ``"efficientnet-lite0"``); the
            path of one that ``handful head train`` made; or a :class:`handful.Head`.
        iterations: refinements; 0 compares rows with the means of the labelled ones.
        distractors: whether unlabelled rows may belong to no class; ``"auto"`` decides it from the data, False never
            calls a row none of these.
        scale: of the cosines; ``"auto"`` sets it so that the mean confidence is the expected accuracy.
        none_rate: the share of the images of the classes that :meth:`is_none` may call none of these.
        random_state: for the sake of the convention: nothing is drawn at random.

    Attributes:
        classes_: the labels, sorted.
        transduction_: (n_samples,) the given or found label of each row of ``fit``.
        label_distributions_: (n_samples, n_classes) the same as probabilities.
        n_iter_: refinements.
        expected_accuracy_: of all unlabelled rows, "none of these" included.
        expected_accuracy_interval_: its 95 % interval.
        class_shares_: (n_classes,) estimated shares of the classes among the unlabelled rows.
        none_share_: the share of the unlabelled rows that belong to no class, estimated; 0 if there is no sign of any.
        none_threshold_: rows with a ``none_score`` of at most this are none of these: ``none_rate``, or 0 if there is
            no sign of rows of no class.
        embedder_: the embedder of the rows, if the model was made by ``handful label``; else None.
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
        distractors: bool | str = "auto",
        scale: float | str = "auto",
        none_rate: float = 0.1,
        random_state: Any = None,
    ) -> None:
        self.head = head
        self.iterations = iterations
        self.distractors = distractors
        self.scale = scale
        self.none_rate = none_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any, none: Any = None) -> TACClassifier:  # noqa: N803 - scikit-learn's name
        """Learn from labelled and unlabelled rows; if that fails, the estimator stays as it was.

        Args:
            X: (n_samples, n_features) float32 or float64, raw; may be memory-mapped, and is neither copied nor changed;
                or a :class:`handful.VectorFolder`.
                Only the direction of a row counts, not its length; a row of zeros has none.
            y: (n_samples,) labels. Unlabelled: -1 among numbers; None, NaN, -1 or "" among strings.
            none: (n_samples,) bool, rows that are known to belong to no class; their ``y`` must say unlabelled.
        """
        fitted = copy(self)
        fitted._fit(X, y, none)
        self.__dict__ = fitted.__dict__  # all at once, when nothing can fail any more
        return self

    def refit(self, y: Any, none: Any = None, *, check: bool = True) -> TACClassifier:
        """Learn again from other labels of the same rows: much faster than :meth:`fit`, and the same result.

        Args:
            y, none: as in :meth:`fit`, for the rows that it was given.
            check: whether to estimate the accuracy and to set the confidence anew. Without it, what the last check
                found is kept, which is faster still; call :meth:`check` when there is time.
        """
        self._check_rows()
        fitted = copy(self)
        labels, fitted.classes_ = read_labels(y, len(self._space.order))
        mark_none(labels, none)
        fitted._learn(labels, check)
        self.__dict__ = fitted.__dict__
        return self

    def check(self) -> TACClassifier:
        """Estimate the accuracy and set the confidence after ``refit(..., check=False)``."""
        self._check_rows()
        fitted = copy(self)
        fitted._learn(self._labels, True)
        self.__dict__ = fitted.__dict__
        return self

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, a few megabytes, for rows to come: see :meth:`load`.

        The file holds what :meth:`predict` and the other methods for new rows need, and not the rows of :meth:`fit`:
        ``transduction_``, ``label_distributions_`` and :meth:`refit` are not there after loading.
        """
        check_is_fitted(self, "classes_")
        save_attributes(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> TACClassifier:
        """A model that :meth:`save` wrote. Its answers for new rows are bit for bit those of the saved one.

        Nothing in the file is run; a damaged one is refused.
        """
        found = cls()
        load_attributes(found, Path(path))
        return found

    _crowd: float  # what the last check found: how many labels the unlabelled rows of a class count as,
    _temperature: float  # the factor of the logits,
    _accuracy: Accuracy  # and the accuracy to expect

    def _fit(self, X: Any, y: Any, none: Any) -> None:  # noqa: N803
        self._settings()
        X = read_rows(self, X, reset=True)  # noqa: N806
        labels, self.classes_ = read_labels(y, len(X))
        mark_none(labels, none)
        self._head = None if self.head is None else load_head(self.head)
        if self._head is not None and self._head.features != X.shape[1]:
            raise ValueError(
                f"the head {self._head.name} is for embeddings of {self._head.features} features, but X has "
                f"{X.shape[1]} features"
            )
        frame = Frame.of(X) if self._head is None else self._head.frame(X)
        self._space = Space.of(X, frame, reduce=self._head is None or self._head.references is None)
        self._projection = self._space.projection
        self._kind = X.dtype
        self.embedder_: Origin | None = None
        self._learn(labels, True)

    def _learn(self, labels: NDArray[np.int64], check: bool) -> None:
        """Everything that depends on the labels."""
        settings, space = self._settings(), self._space
        labelled, none = np.flatnonzero(labels >= 0), np.flatnonzero(labels == NONE)
        free = space.core[labels[space.core] < 0]
        free = evenly(free[labels[free] != NONE], min(REFINED, max(1, CELLS // len(self.classes_))))
        task = Task(space, labelled, labels[labelled], len(self.classes_), free)
        adapt = None
        if self._head is not None and self._head.references is not None:
            totals = np.eye(task.classes)[task.labels].T @ space.smoothed(labelled)
            adapt = self._head.adapt(totals)
        settings = replace(settings, adapt=adapt)
        if not check:
            settings = replace(settings, crowd=self._crowd, accuracy=self._accuracy.expected)
        model = refine(task, settings)
        if check:
            self._accuracy = expected_accuracy(task, model, settings)
            odds = self._accuracy.expected / (1 - self._accuracy.expected)
            self._crowd = float(np.clip(CROWD * odds, LEAST_CROWD, MOST_CROWD))
            if settings.iterations:
                settings = replace(settings, crowd=self._crowd, accuracy=self._accuracy.expected)
                model = refine(task, settings)
            some = evenly(free, CALIBRATED)
            logits = model.logits(space.smoothed(some if len(some) else labelled))
            self._temperature = 1.0 if settings.scale else temperature(logits, self._accuracy.expected)
        self._labels, self._model, self.n_iter_, self.class_shares_ = labels, model, settings.iterations, model.shares
        self._judge_none(task, none)
        self._conclude(labels)

    def _judge_none(self, task: Task, none: NDArray[np.int64]) -> None:
        self._judge = None
        self.none_threshold_ = self.none_share_ = 0.0
        if self.distractors is False or (isinstance(self.distractors, np.bool_) and not self.distractors):
            return
        # Classes that are nearly even count evenly: those that draw rows of no class would look larger.
        sizes = class_sizes(task, self._model, self._accuracy.guess) ** (1 - self._model.evenness)
        self._judge = judge(task.space, task.labelled, task.labels, sizes, none)
        if self.distractors != "auto" or len(none) or self._judge.any:
            self.none_threshold_, self.none_share_ = float(self.none_rate), self._judge.share()

    def _conclude(self, labels: NDArray[np.int64]) -> None:
        """Labels and probabilities of all rows of fit, and the accuracy to expect of them."""
        view = self._space.view
        self.label_distributions_ = np.empty((len(view), len(self.classes_)), dtype=self._kind)
        for rows, part in _parts(view, len(self.classes_)):
            self.label_distributions_[rows] = self._chances(part)
        given = np.flatnonzero(labels >= 0)
        self.label_distributions_[given] = 0
        self.label_distributions_[given, labels[given]] = 1
        self.transduction_ = self.classes_[self.label_distributions_.argmax(1)]
        low, high = self._accuracy.interval()
        flagged = 0.0
        if self.none_threshold_:
            free = self._space.core[labels[self._space.core] < 0]
            parts = _parts(view.rows(free), len(self.classes_))
            flagged = float(sum((self._rates(part) <= self.none_threshold_).sum() for _, part in parts))
            flagged /= max(1, len(free))
        least, most = (0.0, 0.0) if self._judge is None else self._judge.shares()
        self.expected_accuracy_ = self._of_all(self._accuracy.expected, flagged, self.none_share_)
        self.expected_accuracy_interval_ = (
            min(self.expected_accuracy_, self._of_all(low, flagged, most)),
            max(self.expected_accuracy_, self._of_all(high, flagged, min(least, self.none_share_))),
        )

    def _of_all(self, accuracy: float, flagged: float, none: float) -> float:
        """From the accuracy on rows of the classes to that on all, if such a share is none, and another called so."""
        own = 1 - none
        wrong = min(own * self.none_threshold_, flagged)  # rows of the classes that are called none
        return float(np.clip(own * accuracy * (1 - wrong / max(own, 1e-9)) + flagged - wrong, 0, 1))

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The label of each row; whether it is of any class at all is what :meth:`is_none` answers."""
        best = np.concatenate([self._chances(part).argmax(1) for part in self._seen(X)])
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """(n_samples, n_classes): the probability of each class, if the row belongs to one of them."""
        return np.concatenate([self._chances(part) for part in self._seen(X)])

    def none_score(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """(n_samples,) from 0 to 1: the share of the images of the classes that look at least as foreign.

        Small rates speak for "none of these"; 1 for all rows if ``distractors=False``.
        """
        return np.concatenate([self._rates(part) for part in self._seen(X)])

    def none_scores(self) -> NDArray[np.float64]:
        """(n_samples,) the :meth:`none_score` of the rows of ``fit``, which are not looked at again."""
        check_is_fitted(self, "classes_")
        return np.concatenate([self._rates(part) for _, part in _parts(self._space.view, len(self.classes_))])

    def is_none(self, X: Any) -> NDArray[np.bool_]:  # noqa: N803
        """(n_samples,) bool: rows that belong to no class."""
        found: NDArray[np.bool_] = (self.none_score(X) <= self.none_threshold_) & (self.none_threshold_ > 0)
        return found

    def unit_vectors(self, X: Any) -> Floats:  # noqa: N803
        """(n_samples, dim) mapped vectors: rows as they are clustered, which no method takes as X.

        They are projected, drawn towards their neighbours, and of unit length: for maps and searches.
        """
        return np.concatenate([unit(part.smoothed.astype(self._kind)) for part in self._seen(X)])

    def _seen(self, X: Any) -> Iterator[View]:  # noqa: N803
        check_is_fitted(self, "classes_")
        self._check_width(getattr(X, "shape", ()))
        X = read_rows(self, X, reset=False)  # noqa: N806
        return (see(self._projection, X[rows]) for rows in chunks(X, 16 * len(self.classes_)))

    def _check_width(self, shape: tuple[int, ...]) -> None:
        """Say more of rows of another width than scikit-learn does, where more is known."""
        advice = "" if self.embedder_ is None else f": give vectors of {self.embedder_.name}, as handful.embed does"
        if len(shape) == 2 and shape[1] == self._projection.anchors.shape[1]:
            advice = ": these look like unit_vectors, which are mapped; give the raw vectors of the embedder"
        if len(shape) == 2 and shape[1] != self.n_features_in_ and advice:
            raise ValueError(
                f"X has {shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} features as "
                f"input{advice}"
            )

    def _check_rows(self) -> None:
        check_is_fitted(self, "classes_")
        if not hasattr(self, "_space"):
            raise NotFittedError("this model was loaded from a file, without the rows of fit: call fit")

    def _chances(self, view: View) -> Floats:
        model: Model = self._model
        logits = model.logits(view.smoothed.astype(model.means.dtype)) * model.means.dtype.type(self._temperature)
        logits[view.blank] = 0
        return softmax(logits).astype(view.smoothed.dtype if view.smoothed.itemsize > 2 else self._kind, copy=False)

    def _rates(self, view: View) -> NDArray[np.float64]:
        return np.ones(len(view)) if self._judge is None else self._judge.rate(view)

    def _settings(self) -> Settings:
        if not isinstance(self.iterations, Integral) or isinstance(self.iterations, bool) or self.iterations < 0:
            raise ValueError(f"iterations must be a whole number from 0 on, got {self.iterations!r}")
        if not isinstance(self.distractors, (bool, np.bool_)) and self.distractors != "auto":
            raise ValueError(f"distractors must be True, False or 'auto', got {self.distractors!r}")
        if not isinstance(self.none_rate, Real) or isinstance(self.none_rate, bool) or not 0 <= self.none_rate <= 1:
            raise ValueError(f"none_rate must be a number from 0 to 1, got {self.none_rate!r}")
        if isinstance(self.scale, str) and self.scale == "auto":
            return Settings(int(self.iterations))
        if not isinstance(self.scale, Real) or isinstance(self.scale, bool) or not 0 < self.scale < np.inf:
            raise ValueError(f"scale must be 'auto' or a number above 0, got {self.scale!r}")
        return Settings(int(self.iterations), min(float(self.scale), HARDEST))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # noqa: N803 - scikit-learn's name
        where = ", without a head: the space is adapted to the soft labels" if self.head is None else ""
        return f"{super().__repr__(N_CHAR_MAX)}{where}"


def _parts(view: View, classes: int) -> Iterator[tuple[slice, View]]:
    """All rows, a chunk at a time."""
    return ((rows, view.rows(rows)) for rows in chunks(view.smoothed, max(16 * classes, 512)))
