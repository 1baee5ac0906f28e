"""Random tasks of labelled and unlabelled rows, by which heads and classifiers are judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import HandfulError


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


@dataclass(frozen=True)
class Task:
    """Rows of a task: where they are, what is given of them (-1: nothing), and their class (-1: another one)."""

    rows: NDArray[np.int64]
    given: NDArray[np.int64]
    truth: NDArray[np.int64]


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
