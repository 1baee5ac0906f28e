"""Predict a label for each image from a few labels, with a confidence and a score for "none of these"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.base import Bar, no_bar
from ..embedders import DEFAULT, embed_files, load_embedder
from ..embedders.origin import Origin
from ..errors import HandfulError
from ..estimator.classifier import TACClassifier
from ..estimator.head import Head, head_of
from ..estimator.suggestions import suggest
from .estimate import Estimate, cross_validate
from .prediction import DOUBTFUL, Prediction, two_best
from .session import Session
from .sources import Collection, collect, look_alike


@dataclass(frozen=True)
class Labelling:
    """The result of ``handful label``.

    Attributes:
        predictions: one per image that can be read, in the order of their paths.
        vectors: (images, dim), mapped: the ``unit_vectors`` that were clustered, not those of the embedder.
        classes: the labels.
        broken: images that cannot be read, with the reason.
        threshold: of ``none_score``.
        next_to_label: paths of images that stand for many uncertain ones, most useful first.
        estimate: of the accuracy, from the given labels alone; None if no class has two.
        expected: the accuracy to expect over all images, "none of these" included, and the ends of its 95 % interval.
        alike: pairs of labels that look like one class written in two ways.
        about: embedder, head and settings.
        fitted: the vectors and the model behind it, which :meth:`relabelled` uses again.
    """

    predictions: list[Prediction]
    vectors: NDArray[np.float32]
    classes: list[str]
    broken: dict[str, str]
    threshold: float
    next_to_label: list[str]
    estimate: Estimate | None
    about: dict[str, str]
    expected: tuple[float, float, float] | None = None
    alike: list[tuple[str, str]] = field(default_factory=list)
    fitted: Fitted | None = field(default=None, repr=False, compare=False)

    def relabelled(self, changes: Mapping[str, str]) -> Labelling:
        """The result with other labels: one more fit, for which no image is read or embedded again.

        Args:
            changes: path of an image -> its label; "" takes the label away, and the label of images of no class
                (``none_label`` of :func:`find_labels`) says that it is none of these. Other labels stay.
        """
        if self.fitted is None:
            raise HandfulError("this labelling was made without its vectors: call find_labels")
        return _labelling(self.fitted.refit(changes))

    def save_model(self, path: Path) -> None:
        """Write the model for ``handful predict``, with the threshold of "none of these" that was used here."""
        if self.fitted is None:
            raise HandfulError("this labelling was made without its model: call find_labels")
        model = copy(self.fitted.model)
        model.none_threshold_ = self.threshold
        model.save(path)

    def counts(self) -> dict[str, int]:
        """Number of images per label, without those that are none of these."""
        found = Counter(one.label for one in self.predictions if not one.is_none)
        return {label: found[label] for label in self.classes}

    def none(self) -> list[Prediction]:
        return [one for one in self.predictions if one.is_none]

    @property
    def probabilities(self) -> NDArray[Any]:
        """(images, classes): of each label, given that the image belongs to one of the classes."""
        if self.fitted is None:
            raise HandfulError("this labelling was made without its model: call find_labels")
        return np.asarray(self.fitted.model.label_distributions_)

    def suspects(self) -> list[tuple[str, str, str, float]]:
        """Given labels that look wrong: (path, given, predicted when it was hidden, how sure)."""
        if self.estimate is None or self.fitted is None:
            return []
        names = self.fitted.images.names
        return [(names[one.row], one.label, one.found, one.confidence) for one in self.estimate.suspects()]

    def doubtful(self) -> list[Prediction]:
        return [
            one for one in self.predictions
            if one.source == "predicted" and not one.is_none and one.confidence < DOUBTFUL
        ]  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """How labels are found.

    Attributes:
        distractors: whether some images may belong to no class.
        none_threshold: of ``none_score``, the share of the images of the classes that may be called none; None takes
            0.1, or 0 if there is no sign of images of no class.
        iterations: refinements, at most.
        suggestions: how many images to suggest for labelling next.
    """

    distractors: bool = True
    none_threshold: float | None = None
    iterations: int = 6
    suggestions: int = 12

    def __post_init__(self) -> None:
        if self.none_threshold is not None and not 0 <= self.none_threshold <= 1:
            raise HandfulError(f"--none-threshold must be between 0 and 1, got {self.none_threshold}")


@dataclass(frozen=True)
class EmbeddedImages:
    """What is the same for any labels of the images.

    Attributes:
        names: of the images that can be read.
        vectors: (images, features), raw: as the embedder gives them.
        broken: images that cannot be read, with the reason.
        embedder: its name.
        head: for the classifier; None for none.
        origin: the embedder in more words, for a model that is saved.
    """

    names: list[str]
    vectors: NDArray[np.float32]
    broken: dict[str, str]
    embedder: str
    head: Head | None
    origin: Origin | None = None


@dataclass(frozen=True)
class Fitted:
    """A classifier fitted to the labels of embedded images.

    Attributes:
        images: the vectors.
        collection: with the labels.
        settings: of the classifier and of what is made of it.
        given: (images,) the label of each, "" if it has none.
        none: (images,) whether it is known to be of no class.
        model: the classifier.
    """

    images: EmbeddedImages
    collection: Collection
    settings: Settings
    given: NDArray[np.object_]
    none: NDArray[np.bool_]
    model: TACClassifier

    def refit(self, changes: Mapping[str, str]) -> Fitted:
        """The same images with other labels, see :meth:`Labelling.relabelled`."""
        collection = self.collection.relabelled(changes)
        given, none = _given(collection, self.images.names, self.images.broken)
        with _explained():
            model = copy(self.model).refit(given, none=none if none.any() else None)
        return replace(self, collection=collection, given=given, none=none, model=model)


def find_labels(
    images: str | Path,
    labels: str | Path | None = None,
    *,
    embedder: str = DEFAULT,
    head: str | None = None,
    none_label: str = "none-of-these",
    device: str = "auto",
    bar: Bar = no_bar,
    **settings: Any,
) -> Labelling:
    """Label images from a few labels; only the cache of vectors is written.

    Args:
        images, labels, none_label: see :func:`collect`.
        embedder: a name of :mod:`handful.embedders`.
        head: None for none; ``"auto"`` takes the one that comes with handful for the embedder, if there is one.
        device: for the embedder.
        bar: a progress bar.
        settings: of :class:`Settings`: ``distractors``, ``none_threshold``, ``iterations``, ``suggestions``.
    """
    chosen = Settings(**settings)
    collection = collect(Path(images), None if labels is None else Path(labels), none_label)
    source = load_embedder(embedder, device)
    vectors, names, broken = embed_files(source, collection.files, collection.names, bar)
    loaded, origin = head_of(embedder, head), Origin.of(source)
    embedded = EmbeddedImages(names, vectors, collection.skipped | broken, embedder, loaded, origin)
    return _labelling(_fit(embedded, collection, chosen))


def _fit(images: EmbeddedImages, collection: Collection, settings: Settings) -> Fitted:
    """Fit a classifier to the labels; labels that it cannot use are an error."""
    given, none = _given(collection, images.names, images.broken)
    head, features = images.head, images.vectors.shape[1]
    if head is not None and head.features != features:
        raise HandfulError(
            f"the head {head.name} is for vectors of {head.features}, but {images.embedder} gives {features}"
        )
    with _explained():
        session = Session(
            images.vectors, images.names, none_label=collection.none_label, head=head,
            distractors=settings.distractors, iterations=settings.iterations,
        )  # fmt: skip
        labels = {name: label for name, label in zip(images.names, given, strict=True) if label}
        session.give(labels | dict.fromkeys(np.array(images.names, dtype=object)[none], collection.none_label))
        model = session.classifier()
    model.embedder_ = images.origin
    return Fitted(images, collection, settings, given, none, model)


@contextmanager
def _explained() -> Iterator[None]:
    """What the estimator cannot work with is bad input here."""
    try:
        yield
    except HandfulError:
        raise
    except ValueError as error:
        raise HandfulError(str(error)) from error


def _labelling(fitted: Fitted) -> Labelling:
    """What a fitted classifier says of its images."""
    images, settings, model = fitted.images, fitted.settings, fitted.model
    threshold = model.none_threshold_
    if settings.none_threshold is not None and settings.distractors:
        threshold = settings.none_threshold
    found = _predictions(fitted, threshold)
    unit = model.unit_vectors(images.vectors)
    return Labelling(
        predictions=found,
        vectors=unit,
        classes=model.classes_.tolist(),
        broken=images.broken,
        threshold=threshold,
        next_to_label=_next_to_label(fitted, found, unit, threshold),
        estimate=cross_validate(model, images.vectors, fitted.given, fitted.none),
        about=_about(fitted, threshold),
        expected=(model.expected_accuracy_, *model.expected_accuracy_interval_),
        alike=look_alike(model.classes_.tolist()),
        fitted=fitted,
    )


def _next_to_label(fitted: Fitted, found: list[Prediction], unit: NDArray[np.float32], threshold: float) -> list[str]:
    """Paths of the images to label next."""
    rates = np.array([one.none_score for one in found]) if threshold else None
    known = np.flatnonzero((fitted.given != "") | fitted.none)
    soft = np.asarray(fitted.model.label_distributions_)
    return [found[row].path for row in suggest(unit, soft, rates, known, fitted.settings.suggestions)]


def _about(fitted: Fitted, threshold: float) -> dict[str, str]:
    head, settings = fitted.images.head, fitted.settings
    looked = settings.distractors or fitted.none.any()
    chosen = "set by itself" if settings.none_threshold is None else "given"
    return {
        "embedder": fitted.images.embedder,
        "head": "none: the space is rebuilt from the soft labels" if head is None else head.name,
        "images of no class": "looked for" if looked else "not looked for",
        "threshold of 'none of these'": f"{threshold:.3f} ({chosen})",
        "refinements": str(fitted.model.n_iter_),
    }


def _given(
    collection: Collection, names: list[str], broken: dict[str, str]
) -> tuple[NDArray[np.object_], NDArray[np.bool_]]:
    """The label of each readable image, "" if it has none; and whether it is known to be of no class."""
    given = np.array([collection.given.get(name, "") for name in names], dtype=object)
    lost = sorted(set(collection.classes) - set(given))
    if lost:
        first = next(name for name, label in collection.given.items() if label == lost[0])
        raise HandfulError(
            f"none of the images labelled '{lost[0]}' can be read; the first, {first}: {broken.get(first, 'missing')}"
        )
    return given, np.array([name in collection.none for name in names], dtype=bool)


def _predictions(fitted: Fitted, threshold: float) -> list[Prediction]:
    model, given, none = fitted.model, fitted.given, fitted.none
    chances = np.asarray(model.label_distributions_)
    order = two_best(chances)
    scores = model.none_score(fitted.images.vectors)
    found = []
    for row, name in enumerate(fitted.images.names):
        best, second = order[row]
        known = bool(given[row]) or bool(none[row])
        beyond = bool(none[row]) if known else bool(0 < threshold >= scores[row])
        found.append(Prediction(
            name, str(model.classes_[best]), float(chances[row, best]), str(model.classes_[second]),
            float(scores[row]), beyond, "given" if known else "predicted",
        ))  # fmt: skip
    return found
