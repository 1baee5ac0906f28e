"""Task-adaptive clustering without learned references: the space is rebuilt from the soft labels in every refinement.

The recipe, of which `refine` is the loop:

1. start: a ridge regression on the labelled rows and, the fewer labels the more, a random walk from them;
2. adapt the space: whiten it by the covariance within the soft classes (with references: TAC's projection);
3. class means: the labelled rows, and the unlabelled ones by soft label and confidence, which count as at most `crowd`
   labels in a class of the average size, and in others in proportion to their size: rows that are mistaken for those of
   a class come from all the others, so they are a larger part of a small one;
4. logits: cosines with the means, so sharp that the best class leads by 5 nats on average,
5. plus the labels' own regression, the more labels the more (in the last refinement a kernel one, in this space; then
   also a logistic one, in place of the rest as far as classes are uneven and the accuracy to expect is low),
6. plus the classes' shares: even ones if the estimated ones are nearly even (but a class that would have to be favoured
   by more than 2 nats for it is left small: it may be absent), else half the log of the estimated ones, or more where
   the logits are much sharper than they are right;
7. soft labels: the softmax of the logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.sparse import csr_array
from scipy.special import expit

from .regressions import KernelRegression, Linear, kernel_ridge, logistic, ridge
from .rows import ROUNDING, Floats, lengths, softmax, unit
from .space import Rows, Space, evenly

LEAD = 5.0  # nats by which the best class leads, on average
CROWD = 5.0  # labels that the unlabelled rows of a class count as, unless more is known
SHRINKAGE = 0.3  # of the covariance within classes, towards a multiple of the identity
EARLY = 0.5  # weight of the linear regression, until the last refinement
FULL_REGRESSION = 10.0  # labels a class from which the regression has its full weight
LEAST_DOUBT = 0.05  # weight from which the logistic one is worth its time
UNEVEN, UNEVEN_WIDTH = 0.11, 0.02  # nats that shares differ from even ones, where they begin to count as uneven
PRIOR, BAYES = 0.5, 0.25  # weight of the log of the shares: at least, and of what Bayes' rule asks for
FAVOUR = 2.0  # nats by which a class may be favoured over the median class, or disfavoured, to make classes even
JUDGED = 2  # refinements before that is judged
REFINED = 4000  # unlabelled rows that take part
CALIBRATED = 300  # of them, by which shares are weighed
CELLS = 1 << 22  # rows times classes of the soft labels: with very many classes, fewer rows take part
SUPPORT = 2000  # labelled rows in a regression, at most
Doubles = NDArray[np.float64]
Adapt = Callable[[Doubles, Doubles, "Scatter"], tuple[Doubles, Doubles]]  # sums, counts -> map, centre


@dataclass(frozen=True)
class Task:
    """Labelled rows, and unlabelled ones that take part in the refinements.

    Attributes:
        space: the rows.
        labelled, labels: (m,) rows and their classes.
        classes: how many.
        unlabelled: (u,) rows.
    """

    space: Space
    labelled: Rows
    labels: NDArray[np.int64]
    classes: int
    unlabelled: Rows

    @property
    def shots(self) -> Doubles:
        return np.bincount(self.labels, minlength=self.classes).astype(np.float64)

    @property
    def support(self) -> Rows:
        """The labels that a regression uses, whatever their order: all, or of very many an even choice."""
        return evenly(np.lexsort((self.space.order[self.labelled], self.labels)), SUPPORT)


@dataclass(frozen=True)
class Scatter:
    """The second moment of the rows (reduced, reduced), and how many they are."""

    moment: Doubles
    count: int

    @classmethod
    def of(cls, *parts: Floats) -> Scatter:
        count = sum(len(part) for part in parts)
        return cls(sum(((part.T @ part).astype(np.float64) for part in parts), np.zeros(())) / max(1, count), count)


@dataclass(frozen=True)
class Settings:
    """How to refine: how often, how sharply (None: `LEAD`), how much unlabelled rows count, and in which space.

    Of the expected accuracy, if it is known, follows how much the shares of the classes count.
    """

    iterations: int = 6
    scale: float | None = None
    crowd: float = CROWD
    adapt: Adapt | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class Model:
    """What a task taught: rows -> logits.

    Attributes:
        map, centre: (reduced, reduced) and (reduced,) the adapted space.
        means: (classes, reduced) unit vectors in it.
        sharpness: of the cosines.
        regression, trust: on the labels alone, and its weight.
        logistic, doubt: another one, and how far it is taken in place of all this.
        bias: (classes,) by the classes' shares.
        shares: (classes,) of the unlabelled rows, estimated.
        evenness: from 0 to 1, how far the classes were taken to be even.
        agreement: share of the unlabelled rows that the regression on the labels alone gives the same class.
    """

    map: Floats
    centre: Floats
    means: Floats
    sharpness: float
    regression: KernelRegression | None
    trust: float
    bias: Floats
    shares: Doubles
    evenness: float = 0.0
    agreement: float = 1.0
    logistic: Linear | None = None
    doubt: float = 0.0

    def logits(self, smoothed: Floats) -> Floats:
        """Smoothed rows (n, reduced) -> (n, classes)."""
        adapted = unit(smoothed @ self.map - self.centre)
        found: Floats = self.sharpness * (adapted @ self.means.T)
        if self.regression is not None:
            found += self.trust * self.regression(adapted)
        if self.logistic is not None:
            found = (1 - self.doubt) * found + self.doubt * self.logistic(unit(smoothed))
        return found + self.bias


def refine(task: Task, settings: Settings) -> Model:
    """Refine the classes of a task with its unlabelled rows."""
    space, k, shots, adapt = task.space, task.classes, task.shots, settings.adapt or whiten
    rows, labels = space.smoothed(task.unlabelled), space.smoothed(task.labelled)  # (u, reduced), (m, reduced)
    given = class_sums(labels, task.labels, k)  # (k, reduced)
    scatter = Scatter.of(labels, rows)
    support = task.support
    who, raw = task.labels[support], unit(space.raw(task.labelled[support]))
    alone = _sharp(ridge(raw, who, k)(unit(space.raw(task.unlabelled))))
    trust = min(1.0, (k / (1 / shots).sum() - 1) / min(FULL_REGRESSION, settings.crowd))
    own, regression, even, level, sure = EARLY * trust * alone, None, 0.0, np.zeros(k), trust
    other, doubt = None, 0.0
    soft = softmax(_start(task, alone))  # 1.
    model = nearest_means(given, rows if len(rows) else labels, scatter, settings)
    for number in range(settings.iterations):
        found = adapt(given + soft.T @ rows, shots + soft.sum(0, dtype=np.float64), scatter)  # 2.
        map_, centre = (part.astype(rows.dtype) for part in found)
        mass = soft.sum(0, dtype=np.float64) + 1
        shares = mass / mass.sum()
        crowd = soft * soft.max(1, keepdims=True, initial=0)
        most = settings.crowd * k * shares
        middle = _means(given, shots, crowd.T @ rows, crowd.sum(0, dtype=np.float64), most)  # 3.
        means = unit(middle.astype(rows.dtype) @ map_ - centre)
        adapted = unit(rows @ map_ - centre)
        cosines = adapted @ means.T
        sharpness = settings.scale or LEAD / lead(cosines)
        if trust and number == settings.iterations - 1:
            regression = kernel_ridge(unit(labels[support] @ map_ - centre), who, k)
            own = regression(adapted)
            trust *= LEAD / lead(own)
            own = trust * own
        logits = sharpness * cosines + own  # 4., 5.
        if number == settings.iterations - 1 and (doubt := _doubt(task, who, settings, even)):
            other = logistic(unit(labels[support]), who, k)
            other = other.times(lead(logits) / lead(other(unit(rows))))
            logits = (1 - doubt) * logits + doubt * other(unit(rows))
        uneven = np.log((mass + shots) / (mass + shots).sum())
        uneven *= PRIOR if number < JUDGED else prior(logits, sure, None if settings.scale else settings.accuracy)
        if number == JUDGED:
            even = evenness(softmax(logits + uneven.astype(rows.dtype)))
        level = balance(logits, shots, level) if even else level
        bias = ((1 - even) * uneven + even * level).astype(rows.dtype)  # 6.
        soft = softmax(logits + bias)  # 7.
        model = Model(map_, centre, means, float(sharpness), regression, float(trust), bias, shares, even)
    model = replace(model, logistic=other, doubt=doubt)
    best = (soft if settings.iterations else model.logits(rows)).argmax(1)
    return replace(model, agreement=float((best == alone.argmax(1)).mean()) if len(best) else 1.0)


def class_sums(rows: Floats, labels: NDArray[np.int64], classes: int) -> Doubles:
    """The sum of the rows of each class (classes, reduced), zero where they cancel out."""
    members = csr_array((np.ones(len(rows)), labels, np.arange(len(rows) + 1)), (len(rows), classes))
    found: Doubles = members.T @ rows.astype(np.float64)
    rounding = 10 * ROUNDING * np.finfo(rows.dtype).eps * (members.T @ lengths(rows).astype(np.float64))
    found[lengths(found) <= rounding] = 0
    return found


def nearest_means(given: Doubles, rows: Floats, scatter: Scatter, settings: Settings) -> Model:
    """The model without refinements: the means of the labelled rows, in the space as it is or by TAC's projection."""
    k, kind = len(given), rows.dtype
    map_, centre = np.eye(given.shape[1]), np.zeros(given.shape[1])
    if settings.adapt is not None:
        map_, centre = settings.adapt(given, np.ones(k), scatter)
    means = unit(given @ map_).astype(kind)
    map_, centre = map_.astype(kind), centre.astype(kind)
    sharpness = settings.scale or LEAD / lead(unit(rows @ map_) @ means.T)
    return Model(map_, centre, means, float(sharpness), None, 0.0, np.zeros(k, dtype=kind), np.full(k, 1 / k))


def whiten(sums: Doubles, counts: Doubles, scatter: Scatter) -> tuple[Doubles, Doubles]:
    """The space in which rows of one class differ evenly in all directions, centred at the mean of the classes."""
    means = sums / np.maximum(counts, 1e-9)[:, None]
    within = scatter.moment - (means.T * (counts / max(1, scatter.count))) @ means
    size = len(within)
    level = max(float(np.trace(within)) / size, 1e-12)
    within = (1 - SHRINKAGE) * within + (SHRINKAGE * level) * np.eye(size)
    map_ = solve_triangular(cholesky(within, lower=True), np.eye(size), lower=True).T * level**0.5
    return map_, means.mean(0) @ map_


def _means(given: Doubles, shots: Doubles, crowd: Floats, weight: Doubles, most: Doubles) -> Doubles:
    """(classes, reduced): labelled rows and the crowd, whose rows count as at most so many labels a class."""
    share = (shots / (shots + np.minimum(weight, most)))[:, None]
    return share * given / shots[:, None] + (1 - share) * crowd / np.maximum(weight, 1e-9)[:, None]


def _start(task: Task, alone: Floats) -> Floats:
    """Logits of the unlabelled rows before the first refinement: the regression's, and those of random walks."""
    view, met = task.space.view.rows(task.unlabelled), np.empty_like(alone)
    step = max(1, CELLS // max(1, len(task.space.core)))  # classes whose walks are held at a time
    for first in range(0, task.classes, step):
        mine = (task.labels >= first) & (task.labels < first + step)
        count = min(step, task.classes - first)
        met[:, first : first + count] = view.spread(
            task.space.walked(task.labelled[mine], task.labels[mine] - first, count)
        )
    met /= task.shots.astype(met.dtype)
    met += 1e-3 * met.mean(0) + 1e-12 if len(met) else 0
    met /= met.sum(1, keepdims=True)
    weight = 1 / (1 + task.shots.mean())
    found: Floats = (1 - weight) * alone + weight * _sharp(np.log(met, out=met))
    return found


def _doubt(task: Task, known: NDArray[np.int64], settings: Settings, even: float) -> float:
    """How far the logistic regression takes the place of the rest: the poorer the clusters, and the more labels.

    Not at all if the labels that it knows are not of all classes.
    """
    if settings.accuracy is None or settings.scale or not len(task.unlabelled):
        return 0.0
    if not np.bincount(known, minlength=task.classes).all():
        return 0.0
    found = (1 - even) * (1 - settings.accuracy) * min(1.0, (float(task.shots.mean()) - 1) / FULL_REGRESSION)
    return found if found > LEAST_DOUBT else 0.0


def evenness(soft: Floats) -> float:
    """From soft labels: 1 if the classes' shares are even, 0 if they differ by more than errors do."""
    shares = (soft.sum(0, dtype=np.float64) + 1e-9) / (len(soft) + 1e-9 * soft.shape[1])
    apart = float((shares * np.log(np.maximum(shares, 1e-12) * len(shares))).sum())
    return float(expit((UNEVEN - apart) / UNEVEN_WIDTH))


def balance(logits: Floats, shots: Doubles, bias: Doubles, rounds: int = 4) -> Doubles:
    """(classes,) what to add to the logits for even classes, labelled rows included: Sinkhorn's, from a first bias."""
    count = len(logits)
    wanted = np.maximum((count + shots.sum()) / len(shots) - shots, 0.1 * count / len(shots))
    wanted /= max(wanted.sum(), 1e-9)
    for _ in range(rounds if count else 0):
        shares = softmax(logits + bias.astype(logits.dtype)).mean(0, dtype=np.float64)
        bias = bias + np.log(wanted) - np.log(np.maximum(shares, 1e-9))
    middle = np.median(bias)
    return np.clip(bias, middle - FAVOUR, middle + FAVOUR)


def prior(logits: Floats, trust: float, accuracy: float | None) -> float:
    """The weight of the log of the shares.

    Logits are as sharp as `LEAD` whatever they are worth. If it takes a factor t to make the mean confidence equal to
    the accuracy, then Bayes' rule gives shares the weight 1 / t in them; estimated shares get a part of that, and the
    less the fewer labels there are.
    """
    some = logits[:: max(1, len(logits) // CALIBRATED)]
    if accuracy is None or not len(some) or confidence(some, BAYES / PRIOR) <= accuracy:
        return PRIOR
    return PRIOR + trust * max(0.0, BAYES / temperature(some, accuracy) - PRIOR)


def confidence(logits: Floats, factor: float) -> float:
    """The mean confidence of these logits times a factor."""
    return float(softmax(logits * logits.dtype.type(factor)).max(1).mean())


def temperature(logits: Floats, accuracy: float) -> float:
    """The factor of the logits with which the mean confidence is the accuracy to expect."""
    low, high = 1e-3, 1e2
    for _ in range(40):
        middle = (low * high) ** 0.5
        if confidence(logits, middle) > accuracy:
            high = middle
        else:
            low = middle
    return float((low * high) ** 0.5)


def lead(logits: Floats) -> float:
    """How far the best class is ahead of the second, on average."""
    if not len(logits) or logits.shape[1] < 2:
        return 1.0
    two = np.partition(logits, -2, axis=1)[:, -2:]
    return max(float((two[:, 1] - two[:, 0]).mean(dtype=np.float64)), 1e-9)


def _sharp(logits: Floats) -> Floats:
    found: Floats = logits * logits.dtype.type(LEAD / lead(logits))
    return found
