"""The estimator and its rivals on labelled vectors: accuracy, calibration, "none of these"; the same draws for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ..datasets.base import Bar, no_bar
from .classifier import TACClassifier
from .kept import Kept, code_of, digest
from .rivals import Labels, Rival, class_means, compared
from .shared import Floats, Shared, unit
from .tasks import Case, Task, draw

OURS = "handful"
BINS = 10  # of the calibration error
NEAREST = 3  # labelled rows by which the simplest score for "none of these" judges
# The modules of this folder that decide what a classifier says, and how it is judged.
RIVAL_CODE = ("rivals.py", "shared.py", "rows.py", "tasks.py", "benchmark.py")
OUR_CODE = ("classifier.py", "confidence.py", "foreign.py", "labels.py", "refinement.py", "rows.py", "space.py",
            "tasks.py", "benchmark.py")  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a classifier says of the rows of a task.

    Attributes:
        chances: (rows, classes) probabilities; None if it only says what is none of these.
        foreign: (rows,) how foreign a row is to all classes; None if it does not say, then its doubts stand for it.
        none: (rows,) bool, rows that it calls none of these; None if it never does.
        interval: of the accuracy over all unlabelled rows, as it expects it.
    """

    chances: Floats | None
    foreign: Floats | None = None
    none: NDArray[np.bool_] | None = None
    interval: tuple[float, float] | None = None


Classifier = Callable[[Shared, Labels, int], Answer]


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
        overall: accuracy over all unlabelled rows: those of other classes are right if called none of these, those of
            the classes are wrong if so.
        covered: 1 if the interval that the classifier expects for this holds it, 0 if not.
        width: of that interval.
        seconds: to fit and predict, without what rivals share.
    """

    accuracy: float
    per_class: float
    confidence: float
    calibration: float
    auroc: float
    false_none: float
    found_none: float
    overall: float
    covered: float
    width: float
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


def benchmark(
    sources: Mapping[str, tuple[Floats, Labels]],
    cases: Sequence[Case],
    *,
    draws: int = 30,
    seed: int = 0,
    rivals: Mapping[str, Rival] | None = None,
    jobs: int = -1,
    kept: Kept | None = None,
    bar: Bar = no_bar,
) -> list[Line]:
    """Every classifier in every case of every source: name -> (vectors, labels).

    Outcomes that are kept already are taken from there, and new ones are kept after every draw.
    """
    lines: list[Line] = []
    rivals = compared() if rivals is None else rivals
    kept = kept or Kept(None)
    tick = bar("comparing", len(sources) * len(cases) * draws)
    for source, (x, labels) in sources.items():
        checksum = digest(x, labels)
        for case in cases:
            codes = _codes(rivals, case)
            cell = kept.cell({"source": checksum, "case": asdict(case), "seed": seed}, codes)
            missing = {n: names for n in range(draws) if (names := [c for c in codes if cell.count(c) <= n])}
            tick(draws - len(missing))
            work = (_arguments(x, draw(labels, case, seed, n), names, rivals) for n, names in missing.items())
            for found in in_parallel(jobs, judge_all, work):
                cell.add({name: asdict(one) for name, one in found.items()})
                tick(1)
            lines += _lines(source, case, {name: cell.columns(name, draws) for name in codes})
    return lines


def _codes(rivals: Mapping[str, Rival], case: Case) -> dict[str, str]:
    """All classifiers of a case, each with what tells its versions apart; a user's rival says it itself."""
    others = code_of(*RIVAL_CODE)
    codes = {OURS: code_of(*OUR_CODE)}
    codes |= {name: str(getattr(rival, "code", "")) + others for name, rival in rivals.items()}
    return codes | dict.fromkeys(SIMPLE if case.foreign else (), others)


def _arguments(x: Floats, task: Task, names: list[str], rivals: Mapping[str, Rival]) -> tuple[Any, ...]:
    return x[task.rows], task, names, {name: rivals[name] for name in names if name in rivals}


def in_parallel(jobs: int, judge: Callable[..., Any], work: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
    """The results in their order, as they come."""
    results: Iterator[Any] = Parallel(n_jobs=jobs, return_as="generator", pre_dispatch="2*n_jobs")(
        delayed(judge)(*arguments) for arguments in work
    )
    return results


def judge_all(x: Floats, task: Task, names: Sequence[str], rivals: Mapping[str, Rival]) -> dict[str, Outcome]:
    """The outcome of the classifiers of these names in one draw."""
    shared = Shared.of(x)
    for part in (shared.cosines, shared.reduced, shared.near) if rivals else ():
        del part  # computed here, so that no rival's time includes them
    classifiers = {OURS: ours(TACClassifier()), **{name: scored(score) for name, score in SIMPLE.items()}}
    classifiers |= {name: plain(rival) for name, rival in rivals.items()}
    return {name: judge(classifiers[name], shared, task) for name in names}


def ours(model: TACClassifier) -> Classifier:
    """The estimator as a classifier to compare."""

    def classify(shared: Shared, given: Labels, classes: int) -> Answer:
        model.fit(shared.x, given)
        rates = model.none_score(shared.x)
        none = (rates <= model.none_threshold_) & (model.none_threshold_ > 0)
        return Answer(model.label_distributions_, -rates, none, model.expected_accuracy_interval_)

    return classify


def plain(rival: Rival) -> Classifier:
    """A function that only gives probabilities as a classifier to compare."""
    return lambda shared, given, classes: Answer(rival(shared, given, classes))


def scored(score: Rival) -> Classifier:
    """A function that only says how foreign rows are."""
    return lambda shared, given, classes: Answer(None, score(shared, given, classes))


def judge(classifier: Classifier, shared: Shared, task: Task) -> Outcome:
    """How a classifier does in a task."""
    begun = time.perf_counter()
    answer = classifier(shared, task.given, int(task.given.max()) + 1)
    return outcome(task, answer, time.perf_counter() - begun)


def nearest_labelled(shared: Shared, given: Labels, classes: int) -> Floats:
    """How far a row is from the nearest labelled ones: a one-line score for "none of these"."""
    return np.asarray(-np.sort(shared.rows @ shared.rows[given >= 0].T, axis=1)[:, -NEAREST:].mean(1))


def nearest_class(shared: Shared, given: Labels, classes: int) -> Floats:
    """How far a row is from the nearest class mean: another one."""
    return np.asarray(-(shared.rows @ unit(class_means(shared.rows, given, classes)).T).max(1))


SIMPLE: dict[str, Rival] = {
    "cosine with the 3 nearest labelled": nearest_labelled,
    "cosine with the nearest class mean": nearest_class,
}


def outcome(task: Task, answer: Answer, seconds: float) -> Outcome:
    """What an answer is worth, with the truth at hand."""
    free, other = task.given < 0, task.truth < 0
    own = free & ~other
    area = np.nan
    if other.any():
        scores = [answer.foreign] if answer.foreign is not None else list(doubts(answer.chances))
        area = max(float(roc_auc_score(other[free], score[free])) for score in scores)
    if answer.chances is None:
        return Outcome(**dict.fromkeys(Outcome.__annotations__, np.nan) | {"auroc": area, "seconds": seconds})
    chosen, truth = answer.chances.argmax(1), task.truth[own]
    right, sure = chosen[own] == truth, answer.chances[own].max(1)
    none = answer.none if answer.none is not None else np.zeros(len(free), dtype=bool)
    overall = float(np.where(other, none, ~none & (chosen == task.truth))[free].mean())
    low, high = answer.interval or (np.nan, np.nan)
    return Outcome(
        accuracy=float(right.mean()),
        per_class=float(np.mean([right[truth == label].mean() for label in np.unique(truth)])),
        confidence=float(sure.mean()),
        calibration=calibration_error(sure, right),
        auroc=area,
        false_none=np.nan if answer.none is None else float(none[own].mean()),
        found_none=float(none[other].mean()) if answer.none is not None and other.any() else np.nan,
        overall=overall,
        covered=np.nan if answer.interval is None else float(low <= overall <= high),
        width=high - low,
        seconds=seconds,
    )


def doubts(chances: Floats | None) -> Iterator[Floats]:
    """Three ways to be unsure, the best of which stands for "none of these" where a classifier has no answer to it."""
    assert chances is not None
    ordered = np.sort(chances, axis=1)
    yield -ordered[:, -1]
    yield ordered[:, -2] - ordered[:, -1]
    yield -(chances * np.log(np.maximum(chances, 1e-12))).sum(1)


def calibration_error(sure: Floats, right: NDArray[np.bool_]) -> float:
    """Expected calibration error: how far confidence is from accuracy in ten bins of the confidence, weighted."""
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    return float(sum(abs(right[place == b].sum() - sure[place == b].sum()) for b in range(BINS)) / len(right))


def half_interval(values: NDArray[Any]) -> float:
    """Half of the 95 % interval of a mean, over draws."""
    return float(1.96 * values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def _lines(source: str, case: Case, tables: dict[str, dict[str, NDArray[Any]]]) -> list[Line]:
    judged = [name for name in tables if np.isfinite(tables[name]["accuracy"]).all()]
    first = max(judged, key=lambda name: tables[name]["accuracy"].mean())
    lines = []
    for name, table in tables.items():
        behind = table["accuracy"] - tables[first]["accuracy"]
        lines.append(Line(
            source, case, name, len(behind), {k: float(v.mean()) for k, v in table.items()},
            {k: half_interval(v) for k, v in table.items()}, float(behind.mean()), half_interval(behind),
        ))  # fmt: skip
    return lines
