"""Learning curves: how accuracy grows if the rows that are suggested get their labels, against other ways to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.base import Bar, no_bar
from .benchmark import OUR_CODE, OURS, half_interval, in_parallel
from .classifier import TACClassifier
from .kept import Kept, code_of, digest
from .rows import NONE
from .shared import Floats
from .suggestions import Rows, doubt, suggest
from .tasks import Case, Labels, Task, draw

ROUNDS, PER_ROUND = 5, 10  # rounds of labelling, and labels of each
RANDOM = "random"


@dataclass(frozen=True)
class State:
    """A task in the course of labelling.

    Attributes:
        model: fitted to the labels so far.
        x, vectors: (rows, features) and the model's unit vectors (rows, dim).
        free: rows that can be chosen.
        known: the others.
        place: numbers that fix what is random: the seed, the draw, the round.
    """

    model: TACClassifier
    x: Floats
    vectors: Floats
    free: Rows
    known: Rows
    place: Sequence[int]


def suggested(state: State) -> Rows:
    """As `handful label` suggests them."""
    model = state.model
    rates = model.none_score(state.x) if model.none_threshold_ else None
    return suggest(state.vectors, np.asarray(model.label_distributions_), rates, state.known, PER_ROUND)


def at_random(state: State) -> Rows:
    return np.random.default_rng(state.place).permutation(state.free)[:PER_ROUND]


def smallest_margin(state: State) -> Rows:
    unsure = doubt(np.asarray(state.model.label_distributions_), state.free)
    return state.free[np.argsort(-unsure, kind="stable")[:PER_ROUND]]


WAYS: dict[str, Callable[[State], Rows]] = {OURS: suggested, RANDOM: at_random, "smallest margin": smallest_margin}


@dataclass(frozen=True)
class Curve:
    """The accuracy of one way to choose after each round, from 0 to 1: means over draws and half of their intervals.

    Attributes:
        source, case, way: the set, what is labelled at the start, and how rows are chosen.
        draws: how many.
        mean, interval: (rounds + 1,) on the rows of the classes that are still unlabelled.
        ahead, ahead_interval: (rounds + 1,) of a random choice, in the same draws.
        gain, gain_interval: the mean of that over the rounds.
    """

    source: str
    case: Case
    way: str
    draws: int
    mean: NDArray[np.float64]
    interval: NDArray[np.float64]
    ahead: NDArray[np.float64]
    ahead_interval: NDArray[np.float64]
    gain: float
    gain_interval: float


def learning_curves(
    sources: Mapping[str, tuple[Floats, Labels]], cases: Sequence[Case], *, draws: int = 30, seed: int = 0,
    jobs: int = -1, kept: Kept | None = None, bar: Bar = no_bar,
) -> list[Curve]:  # fmt: skip
    """The curves of all ways to choose, in every case of every source; kept after every draw, as by `benchmark`."""
    curves: list[Curve] = []
    kept = kept or Kept(None)
    codes = {OURS: code_of(*OUR_CODE, "learning.py", "suggestions.py")}
    codes |= dict.fromkeys((way for way in WAYS if way != OURS), code_of(*OUR_CODE, "learning.py"))
    tick = bar("labelling", len(sources) * len(cases) * draws)
    for source, (x, labels) in sources.items():
        checksum = digest(x, labels)
        for case in cases:
            key = {"source": checksum, "case": asdict(case), "seed": seed, "rounds": ROUNDS, "labels": PER_ROUND}
            cell = kept.cell(key, codes)
            missing = {n: ways for n in range(draws) if (ways := [way for way in codes if cell.count(way) <= n])}
            tick(draws - len(missing))
            work = (_arguments(x, draw(labels, case, seed, n), ways, (seed, n)) for n, ways in missing.items())
            for found in in_parallel(jobs, label_in_rounds, work):
                cell.add(found)
                tick(1)
            curves += _curves(source, case, {way: cell.columns(way, draws) for way in codes})
    return curves


def _arguments(x: Floats, task: Task, ways: list[str], place: tuple[int, int]) -> tuple[Any, ...]:
    return x[task.rows], task, ways, place


def label_in_rounds(x: Floats, task: Task, ways: Sequence[str], place: tuple[int, int]) -> dict[str, dict[str, float]]:
    """The accuracy at the start and after each round, for each way to choose; chosen rows get their true labels."""
    start = TACClassifier().fit(x, task.given)
    vectors = start.unit_vectors(x)
    return {way: _curve(WAYS[way], State(start, x, vectors, *_split(task.given), place), task) for way in ways}


def _curve(choose: Callable[[State], Rows], state: State, task: Task) -> dict[str, float]:
    found, place = {}, state.place
    given = task.given.copy()
    for number in range(ROUNDS + 1):
        own = state.free[task.truth[state.free] >= 0]
        right = np.asarray(state.model.label_distributions_)[own].argmax(1) == task.truth[own]
        found[str(number)] = float(right.mean()) if len(own) else 1.0
        if number == ROUNDS:
            break
        rows = choose(State(state.model, state.x, state.vectors, state.free, state.known, (*place, number)))
        given[rows] = np.where(task.truth[rows] < 0, NONE, task.truth[rows])
        none = given == NONE
        model = copy(state.model).refit(np.where(none, -1, given), none=none if none.any() else None)
        state = State(model, state.x, state.vectors, *_split(given), place)
    return found


def _split(given: Labels) -> tuple[Rows, Rows]:
    """Rows that can be chosen, and the others."""
    return np.flatnonzero(given == -1), np.flatnonzero(given != -1)


def _curves(source: str, case: Case, tables: dict[str, dict[str, NDArray[np.float64]]]) -> list[Curve]:
    values = {way: np.stack(list(table.values()), axis=1) for way, table in tables.items()}  # (draws, rounds + 1)
    found = []
    for way, own in values.items():
        ahead = own - values[RANDOM]
        interval, ahead_interval = (np.array([half_interval(column) for column in part.T]) for part in (own, ahead))
        gains = ahead[:, 1:].mean(1)
        found.append(Curve(
            source, case, way, len(own), own.mean(0), interval, ahead.mean(0), ahead_interval, float(gains.mean()),
            half_interval(gains),
        ))  # fmt: skip
    return found
