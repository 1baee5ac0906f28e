"""The estimator and its rivals on labelled vectors: accuracy, calibration, "none of these"; the same draws for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ..datasets.base import Bar, no_bar
from ..errors import HandfulError
from .classifier import TACClassifier
from .rivals import Floats, Labels, Rival, class_means, compared, unit

OURS = "handful"
SHAPES = ("even", "tail")
TAIL = 20  # times as many rows in the largest class of a long tail as in the smallest
BINS = 10  # of the calibration error
NEAREST = 3  # labelled rows by which the simplest score for "none of these" judges


@dataclass(frozen=True)
class Case:
    """What a task holds.

    Attributes:
        labels: labelled rows of a class; at most half of a class.
        shape: "even": classes of equal size, as far as there are rows; "tail": sizes fall to a twentieth.
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


@dataclass(frozen=True)
class Draw:
    """A task: which rows, what is given of them (-1: nothing), and their class (-1: another one)."""

    rows: NDArray[np.int64]
    given: Labels
    truth: Labels


@dataclass(frozen=True)
class Outcome:
    """How one classifier did in one draw, on the unlabelled rows; shares from 0 to 1, nan where it does not apply.

    Attributes:
        accuracy: of the rows of the classes.
        per_class: the mean over classes of their accuracies.
        confidence: mean probability of the class that was chosen.
        calibration: expected calibration error, in ten bins.
        auroc: of the score for "none of these".
        false_none, found_none: share of the rows of the classes, and of others, that were called none of these.
        seconds: to fit and predict.
    """

    accuracy: float
    per_class: float
    confidence: float
    calibration: float
    auroc: float
    false_none: float
    found_none: float
    seconds: float


@dataclass(frozen=True)
class Line:
    """The mean of an outcome over draws, and half of its 95 % interval; one classifier in one case of one set."""

    source: str
    case: Case
    classifier: str
    draws: int
    mean: dict[str, float]
    interval: dict[str, float]
    behind_first: float  # accuracy: mean difference from the first of this case, 0 or below
    behind_interval: float  # and half of its interval, over the same draws


def draw(labels: Labels, case: Case, seed: int, number: int) -> Draw:
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
    return Draw(*(np.concatenate(parts)[order].astype(np.int64) for parts in (members, given, truth)))


def benchmark(
    sources: dict[str, tuple[Floats, Labels]],
    cases: Sequence[Case],
    *,
    draws: int = 30,
    seed: int = 0,
    rivals: dict[str, Rival] | None = None,
    jobs: int = -1,
    bar: Bar = no_bar,
) -> list[Line]:
    """Every classifier in every case of every source: name -> (vectors, labels)."""
    lines: list[Line] = []
    rivals = compared() if rivals is None else rivals
    tick = bar("comparing", len(sources) * len(cases) * draws)
    for source, (x, labels) in sources.items():
        for case in cases:
            tasks = [draw(labels, case, seed, number) for number in range(draws)]
            found: list[dict[str, Outcome]] = []
            for outcome in _parallel(jobs, ((x[task.rows], task, rivals) for task in tasks)):
                found.append(outcome)
                tick(1)
            lines += _lines(source, case, found)
    return lines


def _parallel(jobs: int, work: Iterator[tuple[Any, ...]]) -> Iterator[dict[str, Outcome]]:
    results: Iterator[dict[str, Outcome]] = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(judge_all)(*arguments) for arguments in work
    )
    return results


def judge_all(x: Floats, task: Draw, rivals: dict[str, Rival]) -> dict[str, Outcome]:
    """The outcome of the estimator and of every rival in one draw."""
    classes = int(task.given.max()) + 1
    begun = time.perf_counter()
    model = TACClassifier().fit(x, task.given)
    chances, scores, flagged = model.label_distributions_, -model.none_score(x), model.is_none(x)
    outcomes = {OURS: _outcome(task, chances, scores, flagged, time.perf_counter() - begun)}
    for name, rival in rivals.items():
        begun = time.perf_counter()
        chances = rival(x, task.given, classes)
        outcomes[name] = _outcome(task, chances, -chances.max(1), None, time.perf_counter() - begun)
    if (task.truth < 0).any():
        for name, score in simple_scores(x, task.given, classes).items():
            nothing = np.full((len(x), classes), np.nan)
            outcomes[name] = _outcome(task, nothing, score, None, np.nan)
    return outcomes


def simple_scores(x: Floats, given: Labels, classes: int) -> dict[str, Floats]:
    """One-line scores for "none of these", higher is more foreign."""
    rows = unit(np.asarray(x, dtype=np.float64))
    rows = unit(rows - rows.mean(0))
    near = np.sort(rows @ rows[given >= 0].T, axis=1)[:, -NEAREST:].mean(1)
    mean = (rows @ unit(class_means(rows, given, classes)).T).max(1)
    return {"cosine with the 3 nearest labelled": -near, "cosine with the nearest class mean": -mean}


def _outcome(task: Draw, chances: Floats, scores: Floats, flagged: Any, seconds: float) -> Outcome:
    own, other = (task.given < 0) & (task.truth >= 0), task.truth < 0
    right = chances[own].argmax(1) == task.truth[own]
    sure = chances[own].max(1)
    present = np.unique(task.truth[own])
    open_rows = own | other
    none: Callable[[Any], float] = lambda rows: np.nan if flagged is None else float(flagged[rows].mean())  # noqa: E731
    known = bool(np.isfinite(sure).all())
    return Outcome(
        accuracy=float(right.mean()) if known else np.nan,
        per_class=float(np.mean([right[task.truth[own] == k].mean() for k in present])) if known else np.nan,
        confidence=float(sure.mean()),
        calibration=calibration_error(sure, right) if known else np.nan,
        auroc=float(roc_auc_score(other[open_rows], scores[open_rows])) if other.any() else np.nan,
        false_none=none(own),
        found_none=none(other) if other.any() else np.nan,
        seconds=seconds,
    )


def calibration_error(sure: Floats, right: NDArray[np.bool_]) -> float:
    """Expected calibration error: how far confidence is from accuracy in ten bins of the confidence, weighted."""
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    return float(sum(abs(right[place == b].sum() - sure[place == b].sum()) for b in range(BINS)) / len(right))


def _lines(source: str, case: Case, found: list[dict[str, Outcome]]) -> list[Line]:
    tables = {name: {k: np.array([asdict(one[name])[k] for one in found]) for k in Outcome.__annotations__}
              for name in found[0]}  # fmt: skip
    judged = [name for name in tables if np.isfinite(tables[name]["accuracy"]).all()]
    first = max(judged, key=lambda name: tables[name]["accuracy"].mean())

    def half(values: NDArray[Any]) -> float:
        return float(1.96 * values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")

    lines = []
    for name, table in tables.items():
        behind = table["accuracy"] - tables[first]["accuracy"]
        lines.append(Line(
            source, case, name, len(found), {k: float(v.mean()) for k, v in table.items()},
            {k: half(v) for k, v in table.items()}, float(behind.mean()), half(behind),
        ))  # fmt: skip
    return lines
