"""What is shown of the images at one moment: label, confidence and flags of each, filtered and sorted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError
from ..labelling.book import FREE, NONE, Ids
from ..labelling.prediction import DOUBTFUL
from ..labelling.predictor import Found
from .layout import Groups

GIVEN, IS_DOUBTFUL, CHANGED, DUPLICATE, BROKEN, EMBEDDED = 1, 2, 4, 8, 16, 32  # flags of `Look.marks`
MOST_ORDERS = 8  # that are kept
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Query:
    """Which images, and in which order: the words of ``/api/images``."""

    show: str = "all"
    sort: str = "name"
    class_id: int | None = None
    group: int | None = None
    surer: float | None = None
    like: int | None = None
    alike: float | None = None
    text: str | None = None


@dataclass(frozen=True)
class Sight:
    """What images are shown by beside their labels; arrays with an entry for each image.

    Attributes:
        names: in small letters, for searches.
        embedded, broken: whether it has a vector; whether it cannot be read.
        groups: None as long as there are none.
        duplicate: (n,) the number of the first of its near-duplicates, -1 for none.
        line: (n,) its place among those that look like it; None as long as that is not known.
        likeness: an image -> (n,) cosines with it, NaN for images without a vector; None if it has none itself.
    """

    names: list[str]
    embedded: Mask
    broken: Mask
    groups: Groups | None
    duplicate: Numbers
    line: Numbers | None
    likeness: Callable[[int], NDArray[np.float32] | None]


class Look:
    """The images with these labels and these predictions.

    Args:
        labels: (n,) given: `FREE`, `NONE` or the id of a class.
        found: the predictions, if there are any.
        is_label: which ids (n,) are of a class that is there.
        before: (n,) the labels that were found before, `FREE` where none was.
        sight: the rest.
    """

    def __init__(
        self, labels: Ids, found: Found | None, is_label: Callable[[Ids], Mask], before: Ids | None, sight: Sight
    ) -> None:
        self.found, self.sight, self.given = found, sight, labels != FREE
        guess = np.full_like(labels, FREE) if found is None else np.where(is_label(found.label), found.label, FREE)
        self.label = np.where(self.given, labels, guess)
        self.is_none = self.label == NONE
        chance = np.zeros(len(labels), np.float32) if found is None else found.chance
        self.confidence = np.where(self.given, np.float32(1), chance)
        self.is_found = ~self.given & (self.label != FREE)
        self.doubtful = self.is_found & ~self.is_none & (chance < DOUBTFUL)
        self.before = np.full_like(labels, FREE) if before is None else before
        self.changed = self.is_found & (self.before != FREE) & (self.before != self.label)
        self._orders: dict[Query, Numbers] = {}

    @cached_property
    def doubt(self) -> NDArray[np.float32]:
        return (
            np.zeros(len(self.label), np.float32) if self.found is None else np.where(self.given, 0, self.found.doubt)
        )

    def counts(self, ids: list[int]) -> dict[int, tuple[int, int, int]]:
        """By id: how many images are labelled so by hand, by the model, and doubtfully by the model."""
        given, found, doubtful = self._by_id
        return {
            number: (int(given[number]), int(found[number]), int(doubtful[number]))
            if number < len(given)
            else (0, 0, 0)
            for number in ids
        }

    @cached_property
    def _by_id(self) -> tuple[Numbers, ...]:
        size = int(self.label.max(initial=0)) + 1
        masks = (self.given, self.is_found, self.doubtful)
        return tuple(np.bincount(self.label[mask & (self.label >= 0)], minlength=size) for mask in masks)

    def total(self, what: str) -> int:
        """How many images are ``given``, ``doubtful``, ``changed`` or have a ``duplicate``."""
        return self._totals[what]

    @cached_property
    def _totals(self) -> dict[str, int]:
        masks = {"given": self.given, "doubtful": self.doubtful, "changed": self.changed,
                 "duplicate": self.sight.duplicate >= 0}  # fmt: skip
        return {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}

    def marks(self) -> bytes:
        """Four bytes for each image: id (two), flags, confidence."""
        marks = np.zeros(len(self.label), dtype=[("id", "<u2"), ("flags", "u1"), ("confidence", "u1")])
        marks["id"] = np.where(self.label == FREE, 0xFFFF, self.label)
        for flag, mask in (
            (GIVEN, self.given), (IS_DOUBTFUL, self.doubtful), (CHANGED, self.changed),
            (DUPLICATE, self.sight.duplicate >= 0), (BROKEN, self.sight.broken), (EMBEDDED, self.sight.embedded),
        ):  # fmt: skip
            marks["flags"] |= np.where(mask, np.uint8(flag), np.uint8(0))
        marks["confidence"] = np.rint(255 * self.confidence)
        return marks.tobytes()

    def select(self, query: Query) -> Numbers:
        """The numbers of the images that match, in order."""
        if query not in self._orders:
            while len(self._orders) >= MOST_ORDERS:
                self._orders.pop(next(iter(self._orders)), None)
            self._orders[query] = self._sorted(query, np.flatnonzero(self._matching(query)))
        return self._orders[query]

    def likeness(self, number: int) -> NDArray[np.float32]:
        if not 0 <= number < len(self.label):
            raise HandfulError(f"there is no image {number} to compare with")
        found = self.sight.likeness(number)
        if found is None:
            raise HandfulError(
                f"image {number} is not embedded yet, or cannot be read: nothing can be compared with it"
            )
        return found

    def _matching(self, query: Query) -> Mask:
        shown: dict[str, Any] = {
            "all": np.ones(len(self.label), dtype=bool), "given": self.given, "found": self.is_found,
            "doubtful": self.doubtful, "none": self.is_none, "changed": self.changed, "unlabelled": ~self.given,
            "duplicates": self.sight.duplicate >= 0, "waiting": ~self.sight.embedded & ~self.sight.broken,
            "broken": self.sight.broken,
        }  # fmt: skip
        mask: Mask = shown[query.show].copy()
        if query.class_id is not None:
            mask &= self.label == query.class_id
        if query.group is not None:
            mask &= False if self.sight.groups is None else self.sight.groups.of == query.group
        if query.surer is not None:
            mask &= self.confidence >= query.surer
        if query.alike is not None:
            if query.like is None:
                raise HandfulError("'alike' needs 'like', the number of the image to compare with")
            mask &= np.nan_to_num(self.likeness(query.like), nan=-2) >= query.alike
        if query.text:
            wanted = query.text.casefold()
            mask &= np.fromiter((wanted in name for name in self.sight.names), dtype=bool, count=len(mask))
        return mask

    def _sorted(self, query: Query, numbers: Numbers) -> Numbers:
        keys: tuple[Any, ...]  # the first is the most important
        groups, line = self.sight.groups, self.sight.line
        if query.sort == "class":
            keys = (self._class_order, ~self.given, -self.confidence)
        elif query.sort == "alike":
            keys = (self._class_order, np.zeros(len(self.label)) if line is None else line)
        elif query.sort == "rival":
            keys = self._by_rival()
        elif query.sort == "doubt":
            keys = (-self.doubt,)
        elif query.sort == "sure":
            keys = (-self.confidence,)
        elif query.sort == "none":
            scores = np.ones(len(self.label)) if self.found is None else self.found.none_score
            keys = (~self.is_none, scores)
        elif query.sort == "like":
            if query.like is None:
                raise HandfulError("sort=like needs 'like', the number of the image to compare with")
            keys = (-np.nan_to_num(self.likeness(query.like), nan=-2),)
        elif query.sort == "group" and groups is not None:
            keys = (np.where(groups.of < 0, len(groups.sizes), groups.of), -groups.typical)
        elif query.sort == "changed":
            keys = (~self.changed, self.label)
        elif query.sort == "duplicates":
            alone = self.sight.duplicate < 0
            keys = (alone, self.sight.duplicate)
        else:  # numbers are in the order of the names
            return numbers
        return numbers[np.lexsort([np.asarray(key)[numbers] for key in reversed(keys)])]

    @cached_property
    def _class_order(self) -> Numbers:
        """(n,) the order of the classes: none of these after them, and images without a label last."""
        found: Numbers = np.where(self.label <= NONE, 1 << 20, self.label) - self.label * (self.label == FREE)
        return found

    def _by_rival(self) -> tuple[Any, ...]:
        """Keys to sort by class, and in a class by the class that an image may be of instead.

        So images that are wrong in the same way stand together: first the rival that most images of the class may be
        of, and of its images the likeliest. Labels that were given come last in their class.
        """
        if self.found is None:
            return (self._class_order, self.given)
        chance = np.where(self.given, 0, self.found.next_chance)
        pair = (self.label.astype(np.int64) + 1) * (int(self.found.second.max(initial=0)) + 2) + self.found.second + 1
        return self._class_order, self.given, -np.bincount(pair, weights=chance)[pair], pair, -chance
