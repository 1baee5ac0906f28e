"""Labels in, predictions out: what the studio does, from Python and without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.base import Bar, no_bar
from ..datasets.files import find_images
from ..embedders import DEFAULT, embed_files, load_embedder
from ..errors import HandfulError
from ..estimator.classifier import TACClassifier
from ..estimator.head import head_of
from ..estimator.suggestions import suggest
from .book import FREE, NONE, Book, Ids, NotThere
from .predictor import Found, Predictor


@dataclass(frozen=True)
class Snapshot:
    """Labels at one moment: their revision, (n,) the labels, and (n,) whether they were given by hand."""

    revision: int
    labels: Ids
    by_hand: NDArray[np.bool_]


class Session:
    """Images as vectors, labels that can be undone, and predictions that follow them.

    Args:
        vectors: (n, dim) of the images; None if they come later (:meth:`see`).
        names: of the images; their numbers if not given.
        book: the labels, if there are any yet; by default none.
        ids: (n,) which of the book's images these are; all by default.
        none_label: the label of images that belong to no class.
        options: of `Predictor`: ``head``, ``distractors``, ``iterations``.

    Attributes:
        book: the labels, with undo and redo: see `Book`.
        names: of the images.
        predictor: what is known of the vectors; None without any.

    Example:
        >>> import numpy as np
        >>> vectors = np.array([[4.0, 1, 0], [1, 4, 0], [5, 1, 1], [4, 0, 1], [0, 5, 1], [1, 4, 1]])
        >>> session = Session(vectors)
        >>> session.label([0], "cat")
        >>> session.label([1], "dog")
        >>> session.labels()
        ['cat', 'dog', 'cat', 'cat', 'dog', 'dog']
        >>> session.undo()
        >>> session.labels()
        ['cat', None, None, None, None, None]
    """

    def __init__(
        self,
        vectors: NDArray[np.floating] | None = None,
        names: Sequence[str] | None = None,
        *,
        book: Book | None = None,
        ids: NDArray[np.int64] | None = None,
        none_label: str = "none-of-these",
        **options: Any,
    ) -> None:
        if vectors is not None and (vectors.ndim != 2 or len(vectors) < 2):
            raise HandfulError(f"a session needs the vectors (n, dim) of two images or more, got {vectors.shape}")
        count = len(names or ()) if vectors is None else len(vectors)
        self.names = [str(number) for number in range(count)] if names is None else list(names)
        if len(self.names) != count:
            raise HandfulError(f"{count:,} vectors need as many names, got {len(self.names):,}")
        self.book = Book(count, none_label) if book is None else book
        self.ids = np.arange(count) if ids is None else ids
        self.predictor: Predictor | None = None
        self._vectors, self._options = vectors, options
        self._found: tuple[int, Found | None] = (-1, None)

    @classmethod
    def of_images(
        cls,
        images: str | Path,
        *,
        embedder: str = DEFAULT,
        head: str | None = None,
        device: str = "auto",
        bar: Bar = no_bar,
        **options: Any,
    ) -> Session:
        """A session with the images of a folder or archive that can be read."""
        found = find_images(Path(images))
        vectors, names, _ = embed_files(load_embedder(embedder, device), found.files, found.names, bar)
        return cls(vectors, names, head=head_of(embedder, head), **options)

    def label(self, images: int | str | Sequence[int | str], label: str | None) -> None:
        """Give images, by number or name, a label; None takes it back, ``none_label`` says that it is of no class."""
        asked = [images] if isinstance(images, int | str) else list(images)
        self.book.label(self._numbers(asked), label)

    def give(self, labels: Mapping[str, str], what: str = "labels") -> None:
        """Give images a label each, as one action: name of the image -> label."""
        numbers = self._numbers(list(labels))
        self.book.name_labels(dict(zip(numbers, labels.values(), strict=True)), what)

    def _numbers(self, images: list[int | str]) -> list[int]:
        by_name: dict[str, int] = {}
        if any(isinstance(one, str) for one in images):
            by_name = {name: number for number, name in enumerate(self.names)}
        numbers = [by_name.get(one, -1) if isinstance(one, str) else one for one in images]
        if -1 in numbers:
            raise NotThere(f"there is no image '{images[numbers.index(-1)]}'")
        return [int(self.ids[number]) if number < len(self.ids) else number for number in numbers]

    def undo(self) -> None:
        self.book.undo()

    def redo(self) -> None:
        self.book.redo()

    def see(self, vectors: NDArray[np.floating], rows: NDArray[np.int64] | None = None) -> Predictor:
        """Learn what can be learned without labels from the vectors (m, dim) of some images (m,), or of all."""
        self.predictor = Predictor(vectors, rows, len(self.names), **self._options)
        return self.predictor

    def snapshot(self) -> Snapshot:
        """The labels as they are now."""
        return Snapshot(self.book.revision, self.book.plain[self.ids], self.book.by_hand[self.ids])

    def update(self) -> Found | None:
        """Predictions from all labels that there are; None as long as fewer than two classes have any."""
        now = self.snapshot()
        if self._found[0] != now.revision:
            found = None
            if self._vectors is not None and Predictor.possible(now.labels, np.arange(len(now.labels))):
                predictor = self.predictor or self.see(self._vectors)
                predictor.check(now.labels, now.by_hand)
                found = predictor.predict(now.labels, now.by_hand)
            self._found = now.revision, found
        return self._found[1]

    def classifier(self) -> TACClassifier:
        """The classifier behind the predictions; its classes are the names of the labels."""
        if self._vectors is None:
            raise HandfulError("there are no vectors yet")
        names = {one.id: one.name for one in self.book.classes.values()}
        labels = self.snapshot().labels
        given = np.array([names.get(int(label), "") for label in labels], dtype=object)
        return (self.predictor or self.see(self._vectors)).learned(given, labels == NONE, check=True)

    def labels(self) -> list[str | None]:
        """The label of each image, given or found."""
        found = self.update()
        ids = self.snapshot().labels if found is None else found.label
        names = {FREE: None, NONE: self.book.none_label} | {one.id: one.name for one in self.book.classes.values()}
        return [names[int(number)] for number in ids]

    def confidence(self) -> NDArray[np.float32]:
        """(n,) the probability of each label, 0 without a prediction, 1 for given ones."""
        found = self.update()
        chance = np.zeros(len(self.names), np.float32) if found is None else found.chance
        return np.where(self.snapshot().labels != FREE, np.float32(1), chance)

    def expected_accuracy(self) -> tuple[float, float, float] | None:
        """The accuracy to expect of images without a given label, and the ends of its 95 % interval."""
        return None if self.update() is None or self.predictor is None else self.predictor.expected

    def accept(self, surer: float) -> int:
        """Give all images whose label was found with at least this confidence that label; how many these are."""
        found = self.update()
        if found is None:
            raise HandfulError("there are no predictions to accept: label images of two classes first")
        rows = np.flatnonzero((self.snapshot().labels == FREE) & (found.label > NONE) & (found.chance >= surer))
        return len(self.book.accept(self.ids[rows].astype(np.int32), found.label[rows]).images)

    def next_to_label(self, count: int = 12) -> list[int]:
        """Numbers of images whose labels would tell most of the others, most useful first."""
        found = self.update()
        given = np.flatnonzero(self.snapshot().labels != FREE)
        if self._vectors is None:
            return [int(row) for row in np.setdiff1d(np.arange(len(self.names)), given)[:count]]
        if found is None:
            whole = np.asarray(self._vectors)
            unit = whole / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), 1e-12)
            return [int(row) for row in suggest(unit, np.ones((len(unit), 1)), None, given, count)]
        rates = found.none_score if found.threshold else None
        soft = np.asarray(found.model.label_distributions_)
        picked = suggest(found.model.unit_vectors(self._vectors), soft, rates, given, count)
        return [int(row) for row in picked]
