"""Random tasks of labelled and unlabelled rows, by which heads and classifiers are judged.

There are two kinds: all classes of a set at once (:class:`Case`, for `handful compare`), and a few of its classes
(:class:`TaskKind`, for heads).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError

Labels = NDArray[np.int64]
SHAPES = ("even", "tail", "absent")
TAIL = 20  # times as many rows in the largest class of a long tail as in the smallest
ABSENT = 3  # one class of so many has no unlabelled rows, if classes are absent


@dataclass(frozen=True)
class Task:
    """Rows of a task: where they are, what is given of them (-1: nothing), and their class (-1: another one)."""

    rows: NDArray[np.int64]
    given: NDArray[np.int64]
    truth: NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """What a task holds.

    Attributes:
        labels: labelled rows of a class; at most half of a class.
        shape: "even": classes of equal size, as far as there are rows; "tail": sizes fall to a twentieth; "absent": as
            even, but a third of the classes have labelled rows only.
        foreign: share of the unlabelled rows that are of other classes. Half of the classes are those others, then.
        rows: of a task, at most.
    """

    labels: int
    shape: str = "even"
    foreign: float = 0.0
    rows: int = 1500

    def __str__(self) -> str:
        other = f", {self.foreign:.0%} of other classes" if self.foreign else ""
        return f"{self.labels} label{'s' * (self.labels > 1)} a class, {self.shape}{other}"


def draw(labels: Labels, case: Case, seed: int, number: int) -> Task:
    """A random task of these rows; the same for the same seed and number."""
    rng = np.random.default_rng([seed, number, case.labels, SHAPES.index(case.shape)])
    classes = np.unique(labels)
    chosen = np.sort(rng.permutation(classes)[: max(2, len(classes) // 2)]) if case.foreign else classes
    if case.foreign and len(chosen) == len(classes):
        raise HandfulError(f"images of other classes need 3 classes or more, there are {len(classes)}")
    room = int(case.rows * (1 - case.foreign)) // len(chosen)
    members = [rng.permutation(np.flatnonzero(labels == name))[:room] for name in chosen]
    if case.shape == "tail":
        share = float(TAIL) ** -(rng.permutation(len(chosen)) / max(1, len(chosen) - 1))
        members = [own[: max(4, round(part * len(own)))] for own, part in zip(members, share, strict=True)]
    if (least := min(map(len, members))) < 2:
        raise HandfulError(f"a class has {least} image, and one is labelled: a class needs 2 or more")
    counts = [min(case.labels, len(own) // 2) for own in members]
    if case.shape == "absent":
        for k in rng.permutation(len(chosen))[: max(1, len(chosen) // ABSENT)]:
            members[k] = members[k][: counts[k]]
    given = [
        np.where(np.arange(len(own)) < count, k, -1) for k, (own, count) in enumerate(zip(members, counts, strict=True))
    ]
    truth = [np.full(len(own), k) for k, own in enumerate(members)]
    if case.foreign:
        unlabelled = sum(map(len, members)) - sum(counts)
        pool = rng.permutation(np.flatnonzero(~np.isin(labels, chosen)))
        members.append(pool[: round(unlabelled * case.foreign / (1 - case.foreign))])
        given.append(np.full(len(members[-1]), -1))
        truth.append(np.full(len(members[-1]), -1))
    order = rng.permutation(sum(map(len, members)))
    return Task(*(np.concatenate(parts)[order].astype(np.int64) for parts in (members, given, truth)))


@dataclass(frozen=True)
class TaskKind:
    """What tasks hold.

    Attributes:
        ways: classes.
        shots: labelled rows of each.
        unlabelled: unlabelled rows of each.
        others: share of the unlabelled rows that are of other classes.
    """

    ways: int
    shots: int
    unlabelled: int = 80
    others: float = 0.0

    def __str__(self) -> str:
        others = f", {self.others:.0%} of other classes" if self.others else ""
        return f"{self.ways}-way, {self.shots} label{'s' * (self.shots > 1)} a class{others}"


def draw_tasks(
    labels: NDArray[np.int64], kind: TaskKind, draws: int, seed: int, spare: NDArray[np.int64] | None = None
) -> Iterator[Task]:
    """Random tasks; the same for the same seed.

    Rows of other classes are those of the classes that a task leaves over, and the ``spare`` ones: rows that are never
    of a task's classes.
    """
    spare = np.zeros(0, dtype=np.int64) if spare is None else spare
    classes = np.setdiff1d(labels, labels[spare])
    if kind.ways > len(classes) - (kind.others > 0 and not len(spare)):
        raise HandfulError(f"{kind} needs more than the {len(classes)} classes there are")
    for number in range(draws):
        rng = np.random.default_rng([seed, number, kind.ways, kind.shots])
        order = rng.permutation(classes)
        rows, given, truth = [], [], []
        for label, name in enumerate(order[: kind.ways]):
            members = rng.permutation(np.flatnonzero(labels == name))[: kind.shots + kind.unlabelled]
            if len(members) <= kind.shots:
                raise HandfulError(f"a class has {len(members)} images, but a task needs {kind.shots + 1} or more")
            rows.append(members)
            given.append(np.where(np.arange(len(members)) < kind.shots, label, -1))
            truth.append(np.full(len(members), label))
        if kind.others:
            pool = np.concatenate([np.flatnonzero(np.isin(labels, order[kind.ways :])), spare])
            wanted = round(kind.ways * kind.unlabelled * kind.others / (1 - kind.others))
            chosen = rng.permutation(pool)[:wanted]
            rows.append(chosen)
            given.append(np.full(len(chosen), -1))
            truth.append(np.full(len(chosen), -1))
        yield Task(*(np.concatenate(parts) for parts in (rows, given, truth)))


def with_spare(
    tested: tuple[NDArray[np.float32], NDArray[np.int64]], more: tuple[NDArray[np.float32], NDArray[np.int64]]
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
    """Vectors and labels with those of further classes behind them, and which rows these are."""
    (x, labels), (other_x, other_labels) = tested, more
    spare = np.arange(len(x), len(x) + len(other_x))
    return np.concatenate([x, other_x]), np.concatenate([labels, labels.max() + 1 + other_labels]), spare
