"""Labels in, predictions out: what the studio does, from Python and without a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.base import Bar, no_bar
from ..embedders import DEFAULT, embed_files, load_embedder
from ..errors import HandfulError
from ..estimator.head import head_of
from .book import FREE, NONE, Book
from .predictor import Found, Predictor
from .sources import find_images
from .suggestions import choose


class Session:
    """Images as vectors, labels that can be undone, and predictions that follow them.

    Args:
        vectors: (n, dim) of the images.
        names: of the images; their numbers if not given.
        none_label: the label of images that belong to no class.
        options: of `Predictor`: ``head``, ``distractors``, ``iterations``.

    Attributes:
        book: the labels, with undo and redo: see `Book`.
        names: of the images.

    Example:
        >>> import numpy as np
        >>> vectors = np.array([[4.0, 1, 0], [1, 4, 0], [5, 1, 1], [4, 0, 1], [0, 5, 1], [1, 4, 1]])
        >>> session = Session(vectors, distractors=False)
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
        vectors: NDArray[np.floating],
        names: Sequence[str] | None = None,
        *,
        none_label: str = "none-of-these",
        **options: Any,
    ) -> None:
        if vectors.ndim != 2 or len(vectors) < 2:
            raise HandfulError(f"a session needs the vectors (n, dim) of two images or more, got {vectors.shape}")
        self.names = [str(number) for number in range(len(vectors))] if names is None else list(names)
        if len(self.names) != len(vectors):
            raise HandfulError(f"{len(vectors):,} vectors need as many names, got {len(self.names):,}")
        self.book = Book(len(vectors), none_label)
        self._vectors, self._options = vectors, options
        self._predictor: Predictor | None = None
        self._found: tuple[int, Found | None] = (-1, None)

    @classmethod
    def of_images(
        cls,
        images: str | Path,
        *,
        embedder: str = DEFAULT,
        head: str | None = "auto",
        device: str = "auto",
        bar: Bar = no_bar,
        **options: Any,
    ) -> Session:
        """A session with the images of a folder or archive that can be read."""
        files, found, _ = find_images(Path(images))
        vectors, names, _ = embed_files(load_embedder(embedder, device), files, found, bar)
        return cls(vectors, names, head=head_of(embedder, head), **options)

    def label(self, images: int | str | Sequence[int | str], label: str | None) -> None:
        """Give images, by number or name, a label; None takes it back, ``none_label`` says that it is of no class."""
        asked = [images] if isinstance(images, int | str) else list(images)
        by_name = {name: number for number, name in enumerate(self.names)} if any(
            isinstance(one, str) for one in asked
        ) else {}  # fmt: skip
        numbers = [by_name.get(one, -1) if isinstance(one, str) else one for one in asked]
        self.book.label(numbers, label)

    def undo(self) -> None:
        self.book.undo()

    def redo(self) -> None:
        self.book.redo()

    def update(self) -> Found | None:
        """Predictions from all labels that there are; None as long as fewer than two classes have any."""
        revision, labels = self.book.revision, self.book.plain
        if self._found[0] != revision:
            found = None
            if Predictor.possible(labels, np.arange(len(labels))):
                self._predictor = self._predictor or Predictor(self._vectors, **self._options)
                self._predictor.check(labels, self.book.by_hand)
                found = self._predictor.predict(labels)
            self._found = revision, found
        return self._found[1]

    def labels(self) -> list[str | None]:
        """The label of each image, given or found."""
        found = self.update()
        ids = self.book.plain if found is None else found.label
        names = {FREE: None, NONE: self.book.none_label} | {one.id: one.name for one in self.book.classes.values()}
        return [names[int(number)] for number in ids]

    def confidence(self) -> NDArray[np.float32]:
        """(n,) the probability of each label, 0 without a prediction, 1 for given ones."""
        found = self.update()
        chance = np.zeros(len(self.names), np.float32) if found is None else found.chance
        return np.where(self.book.plain != FREE, np.float32(1), chance)

    def expected_accuracy(self) -> tuple[float, float, float] | None:
        """The accuracy to expect of images without a given label, and the ends of its 95 % interval."""
        return None if self.update() is None or self._predictor is None else self._predictor.expected

    def accept(self, surer: float) -> int:
        """Give all images whose label was found with at least this confidence that label; how many these are."""
        found = self.update()
        if found is None:
            raise HandfulError("there are no predictions to accept: label images of two classes first")
        rows = np.flatnonzero((self.book.plain == FREE) & (found.label > NONE) & (found.chance >= surer))
        return len(self.book.accept(rows.astype(np.int32), found.label[rows]).images)

    def next_to_label(self, count: int = 12) -> list[int]:
        """Numbers of doubtful images that differ from one another, most useful first."""
        found = self.update()
        given = self.book.plain != FREE
        rows = np.flatnonzero(~given)
        doubt = np.zeros(len(rows)) if found is None else found.doubt[rows]
        unit = self._vectors / np.maximum(np.linalg.norm(self._vectors, axis=1, keepdims=True), 1e-12)
        return [int(rows[place]) for place in choose(doubt, unit[rows], unit[given], count)]
