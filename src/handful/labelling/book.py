"""The labels of a set of images, changed by actions that can be undone and redone without end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError
from .sources import check_label

NONE, FREE = 0, -1  # in the place of a class's id: none of these; no label
ACCEPTED = 1 << 20  # added to the id of a label that was found by a model and accepted, not given by hand
KEYS = "123456789abcdefghijklmopqrstuvwxyz"  # n is for none of these
MOST_CLASSES = 2000
Ids = NDArray[np.int32]


class Conflict(HandfulError):  # noqa: N818 - reads better
    """An action that does not go with what is there by now."""


class NotThere(HandfulError):  # noqa: N818
    """An image or a class that does not exist."""


@dataclass(frozen=True)
class Class:
    """A class: its id never changes, and is never used again."""

    id: int
    name: str
    key: str | None
    colour: int


@dataclass(frozen=True)
class Action:
    """A change of labels and classes that is done, undone and redone as one.

    Attributes:
        what: the action in words.
        images: (n,) of which the label changes.
        before, after: (n,) their labels: `FREE`, `NONE` or the id of a class, with `ACCEPTED` added or not.
        classes: those that change, before and after; None if the class is not there.
    """

    what: str
    images: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    before: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    after: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    classes: tuple[tuple[Class | None, Class | None], ...] = ()

    @property
    def inverse(self) -> Action:
        swapped = tuple((after, before) for before, after in reversed(self.classes))
        return replace(self, before=self.after, after=self.before, classes=swapped)

    def __bool__(self) -> bool:
        return bool(len(self.images) or self.classes)


Record = Callable[[str, Action], None]  # "do", "undo" or "redo", and what is done: called before anything changes


class Book:
    """Classes, and the label of each image.

    Attributes:
        classes: by id.
        labels: (images,) int32: `FREE`, `NONE` or the id of a class, with `ACCEPTED` added or not.
        revision: how many actions there were, undo and redo included.
    """

    def __init__(self, count: int, none_label: str = "none-of-these", record: Record | None = None) -> None:
        self.classes: dict[int, Class] = {}
        self.labels: Ids = np.full(count, FREE, dtype=np.int32)
        self.revision, self.none_label, self._record = 0, none_label, record
        self._done: list[Action] = []
        self._undone: list[Action] = []
        self._next_id = 1

    @property
    def plain(self) -> Ids:
        """(images,) the labels without whether they were accepted."""
        return np.where(self.labels >= 0, self.labels & (ACCEPTED - 1), self.labels).astype(np.int32)

    @property
    def by_hand(self) -> NDArray[np.bool_]:
        """(images,) whether a label was given, and not only accepted."""
        return (self.labels >= 0) & (self.labels < ACCEPTED)

    @property
    def undoable(self) -> str | None:
        return self._done[-1].what if self._done else None

    @property
    def redoable(self) -> str | None:
        return self._undone[-1].what if self._undone else None

    def grow(self, count: int) -> None:
        """Make place for images that came later; they have no label."""
        more = count - len(self.labels)
        if more > 0:
            self.labels = np.append(self.labels, np.full(more, FREE, dtype=np.int32))

    def is_label(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of some ids (n,) are `NONE` or of a class that is there: predictions may be of one that was deleted."""
        there = np.zeros(max(self._next_id, int(ids.max(initial=0)) + 1) + 1, dtype=bool)
        there[[NONE, *self.classes]] = True  # the last is for negative ones
        return there[ids]

    def named(self, name: str) -> Class | None:
        return next((one for one in self.classes.values() if one.name == name), None)

    def label(self, images: Sequence[int] | Ids, name: str | None) -> Action:
        """Give images a label; a new name adds a class, None takes their labels back."""
        numbers = self._checked(images)
        added: tuple[tuple[None, Class], ...] = ()
        if name is None:
            label, what = FREE, "without a label"
        elif name == self.none_label:
            label, what = NONE, "none of these"
        else:
            found = self.named(name)
            if found is None:
                found = self._new(name)
                added = ((None, found),)
            label, what = found.id, name
        return self.do(self._labelled(_count(len(numbers), what), numbers, np.int32(label), added))

    def accept(self, images: Sequence[int] | Ids, labels: Ids, *, seen: bool = False) -> Action:
        """Give each image the label that was found for it; those that have one keep theirs.

        Args:
            images: which.
            labels: of each, by id.
            seen: whether somebody looked at each of them: then it is as good as given by hand.
        """
        numbers, found = self._checked(images), np.asarray(labels, dtype=np.int32)
        free = (self.labels[numbers] == FREE) & self.is_label(found)
        numbers, found = numbers[free], found[free]
        return self.do(self._labelled(f"{_count(len(numbers))} accepted", numbers, found if seen else found + ACCEPTED))

    def name_labels(self, labels: dict[int, str], what: str) -> Action:
        """Give several images a label each, as one action: image -> name."""
        ids = {one.name: one.id for one in self.classes.values()} | {self.none_label: NONE}
        added: list[tuple[None, Class]] = []
        for name in dict.fromkeys(labels.values()):
            if name not in ids:
                added.append((None, self._new(name, [one for _, one in added])))
                ids[name] = added[-1][1].id
        numbers = self._checked(list(labels))
        after = np.array([ids[name] for name in labels.values()], dtype=np.int32)
        return self.do(self._labelled(what, numbers, after, tuple(added)))

    def add(self, name: str, key: str | None = None) -> Action:
        if name == self.none_label or self.named(name):
            raise Conflict(f"there is a class '{name}' already")
        new = self._new(name)
        return self.do(Action(f"the class {name} was added", classes=self._with_key(((None, new),), new, key)))

    def change(self, number: int, **values: Any) -> Action:
        """Give a class another name, key or colour."""
        old = self._class(number)
        name = values.get("name", old.name)
        if name != old.name:
            check_label(name)
            if name == self.none_label or self.named(name):
                raise Conflict(f"there is a class '{name}' already: merge the two instead")
        new = replace(old, **{field: value for field, value in values.items() if field != "key"})
        changes = ((old, new),) if "key" not in values else self._with_key(((old, new),), new, values["key"], True)
        what = f"{old.name} is called {name}" if name != old.name else f"the class {name} was changed"
        return self.do(Action(what, classes=tuple(pair for pair in changes if pair[0] != pair[1])))

    def delete(self, number: int) -> Action:
        """Delete a class; the labels of its images are taken back."""
        old = self._class(number)
        return self.do(self._labelled(f"{old.name} was deleted", self._of(number), np.int32(FREE), ((old, None),)))

    def merge(self, number: int, into: int) -> Action:
        """Give the images of a class to another, and delete it."""
        old, other = self._class(number), self._class(into)
        if number == into:
            raise Conflict(f"{old.name} cannot be merged with itself")
        numbers = self._of(number)
        after = into + (self.labels[numbers] - number)  # accepted ones stay accepted
        what = f"{old.name} was merged into {other.name}"
        return self.do(self._labelled(what, numbers, after, ((old, None),)))

    def undo(self) -> Action:
        if not self._done:
            raise Conflict("there is nothing to undo")
        return self._again("undo", self._done[-1].inverse)

    def redo(self) -> Action:
        if not self._undone:
            raise Conflict("there is nothing to redo")
        return self._again("redo", self._undone[-1])

    def do(self, action: Action) -> Action:
        if action:
            self._again("do", action)
        return action

    def _again(self, kind: str, action: Action) -> Action:
        if self._record is not None:
            self._record(kind, action)
        self._apply(kind, action)
        return action

    def replay(self, kind: str, action: Action) -> None:
        """Repeat what was recorded; of undo and redo the kind alone counts. Raises IndexError if it does not fit."""
        self._apply(kind, action if kind == "do" else self._done[-1].inverse if kind == "undo" else self._undone[-1])

    def _apply(self, kind: str, action: Action) -> None:
        if kind == "do":
            self._done.append(action)
            self._undone.clear()
        else:
            source, target = (self._done, self._undone) if kind == "undo" else (self._undone, self._done)
            target.append(source.pop())
        labels = self.labels.copy()  # whoever reads the former array reads what was true then
        labels[action.images] = action.after
        self.labels = labels
        classes = dict(self.classes)
        for before, after in action.classes:
            if after is None:
                assert before is not None
                classes.pop(before.id, None)
            else:
                classes[after.id] = after
                self._next_id = max(self._next_id, after.id + 1)
        self.classes = dict(sorted(classes.items()))
        self.revision += 1

    def _checked(self, images: Sequence[int] | Ids) -> Ids:
        numbers = np.unique(np.asarray(images, dtype=np.int64))
        if len(numbers) and not (numbers[0] >= 0 and numbers[-1] < len(self.labels)):
            wrong = numbers[-1] if numbers[0] >= 0 else numbers[0]
            raise NotThere(f"there is no image {wrong}: there are {len(self.labels):,}, from 0 on")
        if len(numbers) != len(images):
            raise HandfulError("an image is named more than once")
        return np.asarray(images, dtype=np.int32)

    def _labelled(self, what: str, numbers: Ids, after: Any, classes: tuple[Any, ...] = ()) -> Action:
        """The action that gives images these labels, without those that have them already."""
        wanted = np.broadcast_to(np.asarray(after, dtype=np.int32), numbers.shape)
        now = self.labels[numbers]
        other = now != wanted
        if not other.any() and not any(pair[0] for pair in classes):
            classes = ()  # a name without an image is no class
        return Action(what, numbers[other], now[other], wanted[other].copy(), classes)

    def _of(self, number: int) -> Ids:
        return np.flatnonzero(self.plain == number).astype(np.int32)

    def _class(self, number: int) -> Class:
        if number not in self.classes:
            raise NotThere(f"there is no class {number}")
        return self.classes[number]

    def _new(self, name: str, others: Sequence[Class] = ()) -> Class:
        check_label(name)
        present = [*self.classes.values(), *others]
        if len(present) >= MOST_CLASSES:
            raise Conflict(f"there are {MOST_CLASSES:,} classes already, and more are not possible")
        keys, colours = {one.key for one in present}, {one.colour for one in present}
        key = next((key for key in KEYS if key not in keys), None)
        colour = next(number for number in range(len(present) + 1) if number not in colours)
        return Class(self._next_id + len(others), name, key, colour)

    def _with_key(
        self, changes: tuple[tuple[Class | None, Class], ...], new: Class, key: str | None, free: bool = False
    ) -> tuple[tuple[Class | None, Class | None], ...]:
        """Changes after which a class has this key, and no other has it; None: no key if ``free``, else any."""
        if key is None and not free:
            return changes
        if key is not None and (len(key) != 1 or key not in KEYS):
            raise HandfulError(f"the key of a class is one of {KEYS}, got '{key[:20]}'")
        holder = next((one for one in self.classes.values() if key and one.key == key and one.id != new.id), None)
        taken = () if holder is None else ((holder, replace(holder, key=None)),)
        return (*taken, *changes[:-1], (changes[-1][0], replace(new, key=key)))


def _count(number: int, what: str = "") -> str:
    images = "1 image" if number == 1 else f"{number:,} images"
    return f"{images} {'is' if number == 1 else 'are'} {what}" if what else images
