"""Learn a head on vectors of labelled base classes, for tasks of other classes.

Three things are tried, and judged on classes that were kept out:

- a map that shrinks the directions in which images of one class differ: A = (S + l s I)^(-1/2), with S the covariance
  within classes and s its mean eigenvalue, for several l;
- references, learned with episodes of TAC in the mapped space;
- nothing at all.

The map has a closed form on purpose. Learned by episodes as well, it came to fit the base classes ever better, and
others ever worse (docs/estimator.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .. import functional as F
from ..datasets.base import Bar, no_bar
from ..errors import HandfulError
from ..sampling import EpisodeSampler, EpisodeSpec, split_labelled
from .classifier import TACClassifier
from .head import Head
from .labels import read_labels
from .rows import Frame, Points, unit
from .tasks import TaskKind, draw_tasks

SHRINKAGES = (0.3, 1.0, 3.0, 10.0, 30.0)
TASKS = ((5, 1), (5, 5), (20, 1))  # ways and shots of the tasks that heads are judged by, as far as there are classes
UNLABELLED = 80  # rows a class in these
WAYS, QUERIES, EPISODE_UNLABELLED = 20, 8, 10  # of the episodes that references are learned with
RATE = 3e-3
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class HeadSettings:
    """How a head is learned and judged.

    Attributes:
        episodes: to learn references with; 0 tries none.
        tasks: of each kind, to judge by.
        seed: fixes everything.
    """

    episodes: int = 1000
    tasks: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.episodes < 0:
            raise HandfulError(
                f"a head is judged by one task or more, and learns from none or more, got {self.tasks}, {self.episodes}"
            )


@dataclass(frozen=True)
class _Classes:
    """Vectors (rows, features) of labelled classes."""

    x: Floats
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(np.unique(self.labels))

    def facts(self) -> dict[str, int]:
        return {"classes": len(self), "rows": len(self.x)}


class _Tried(NamedTuple):
    """A head that was tried, its accuracies by kind of task, and what it is in words."""

    head: Head
    found: dict[str, float]
    what: str

    def mean(self) -> float:
        return float(np.mean(list(self.found.values())))


def train_head(
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    validation: tuple[Any, Any] | None = None,
    name: str = "head",
    references: Any = None,
    bar: Bar = no_bar,
    **settings: Any,
) -> Head:
    """Learn a head for an embedder on labelled vectors of base classes.

    Args:
        X: (rows, features) vectors of the base classes.
        y: (rows,) their labels.
        validation: X and y of other classes; by default a fifth of the classes is kept out for it.
        name: of the head.
        references: (most classes, features) that were learned together with the embedder, to be tried as they are.
        bar: a progress bar.
        settings: of :class:`HeadSettings`: ``episodes`` to learn from, ``tasks`` to judge by, ``seed``.

    Returns:
        The best of what was tried; its ``facts["tried"]`` has the accuracies of all.
    """
    chosen = HeadSettings(**settings)
    base, others = _base_and_validation(X, y, validation, chosen.seed)
    maps: dict[float | None, Floats | None] = {None: None}
    maps.update({shrinkage: whitening(base.x, base.labels, shrinkage) for shrinkage in SHRINKAGES})
    tick = bar("judging heads", (len(maps) + 2) * chosen.tasks * len(TASKS))

    def judged(head: Head, what: str) -> _Tried:
        return _Tried(head, accuracies(head, others.x, others.labels, chosen.tasks, chosen.seed, tick), what)

    features = base.x.shape[1]
    tried = [
        judged(Head(name, features, mapping), "no map" if mapping is None else f"map, shrinkage {shrinkage:g}")
        for shrinkage, mapping in maps.items()
    ]
    mapped = max(tried, key=_Tried.mean).head
    if references is not None:
        own = Head(name, features, None, np.asarray(references, dtype=np.float32))
        tried.append(judged(own, "the embedder's own references"))
    if chosen.episodes:
        learned = learn_references(base.x, base.labels, mapped, chosen.episodes, chosen.seed, bar)
        tried.append(judged(learned, f"that map, {chosen.episodes} episodes of TAC"))
    best = max(tried, key=_Tried.mean)
    facts = {
        "base": base.facts(),
        "validation": {**others.facts(), "tasks of each kind": chosen.tasks},
        "chosen": best.what,
        "tried": {one.what: {task: round(value, 2) for task, value in one.found.items()} for one in tried},
        "seed": chosen.seed,
    }
    return Head(name, features, best.head.map, best.head.references, facts)


def _base_and_validation(x: Any, y: Any, validation: tuple[Any, Any] | None, seed: int) -> tuple[_Classes, _Classes]:
    """The classes to learn from and those to judge by."""
    base = _Classes(*_checked(x, y))
    if validation is None:
        base, others = _kept_out(base, seed)
    else:
        others = _Classes(*_checked(*validation))
    if len(others) < 2 or len(base) < 2:
        raise HandfulError(
            f"a head needs two classes to learn from and two to judge by, got {len(base)}, {len(others)}"
        )
    features, theirs = base.x.shape[1], others.x.shape[1]
    if theirs != features:
        raise HandfulError(f"the vectors to learn from have {features} features, those to judge by {theirs}")
    return base, others


def whitening(x: Floats, labels: NDArray[np.int64], shrinkage: float) -> Floats:
    """(features, features): the symmetric map that shrinks what differs within classes."""
    rows = Points(x, Frame.of(x)).vectors(slice(None))
    _, ids = np.unique(labels, return_inverse=True)
    counts = np.bincount(ids)
    means = np.zeros((len(counts), x.shape[1]), dtype=np.float64)
    np.add.at(means, ids, rows)
    within = rows - (means / counts[:, None])[ids]
    covariance = within.T @ within / len(within)
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0)
    scales = (values + shrinkage * max(values.mean(), 1e-12)) ** -0.5
    found: Floats = ((vectors * (scales / scales.max())) @ vectors.T).astype(np.float32)
    return found


def learn_references(x: Floats, labels: NDArray[np.int64], head: Head, episodes: int, seed: int, bar: Bar) -> Head:
    """The head with references for as many classes as there are, up to `WAYS`, learned with one-shot episodes."""
    names, ids = np.unique(labels, return_inverse=True)
    ways = min(WAYS, len(names))
    split = split_labelled(ids.astype(np.int64), tuple(map(str, names)), 0.5, seed)
    spec = EpisodeSpec(ways, 1, QUERIES, EPISODE_UNLABELLED)
    sampler = EpisodeSampler(split, spec, (seed, 1))
    mapped = x if head.map is None else unit(x, 0) @ head.map.T
    points = torch.from_numpy(np.ascontiguousarray(unit(mapped, 0)))
    torch.manual_seed(seed)
    references = nn.Parameter(torch.randn(ways, points.shape[1]) / points.shape[1] ** 0.5)
    # Of the soft labels and of the logits, which are of unit vectors: to be learned, too.
    scales = nn.Parameter(torch.tensor([2.5, 2.0]))
    groups: list[dict[str, Any]] = [{"params": [references]}, {"params": [scales], "lr": 1e-2}]
    optimizer = torch.optim.Adam(groups, lr=RATE)
    tick = bar("learning references", episodes)
    for number in range(episodes):
        if number == int(0.8 * episodes):
            for group in optimizer.param_groups:
                group["lr"] *= 0.1
        episode = sampler.batch(number, 1).map_images(lambda rows: points[rows])
        found = F.tac(episode.centroids, 1, episode.unlabelled, episode.query, references, 1, scale=scales[0].exp(),
                      cosine=True)  # fmt: skip
        logits = found.logits[-1] * scales[1].exp()
        loss = nn.functional.cross_entropy(logits.flatten(0, -2), episode.query_labels.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        tick(1)
    return Head(head.name, head.features, head.map, references.detach().numpy())


def accuracies(
    head: Head | None, x: Floats, labels: NDArray[np.int64], tasks: int, seed: int, tick: Callable[[float], None]
) -> dict[str, float]:
    """Mean accuracy (%) on the unlabelled rows of random tasks, by kind of task."""
    classes = len(np.unique(labels))
    found: dict[str, float] = {}
    for ways, shots in sorted({(min(ways, classes), shots) for ways, shots in TASKS}):
        right = []
        for task in draw_tasks(labels, TaskKind(ways, shots, UNLABELLED), tasks, seed):
            model, free = TACClassifier(head).fit(x[task.rows], task.given), task.given < 0
            right.append(float((model.transduction_ == task.truth)[free].mean()))
            tick(1)
        found[f"{ways}-way {shots}-shot"] = 100 * float(np.mean(right))
    return found


def _checked(x: Any, y: Any) -> tuple[Floats, NDArray[np.int64]]:
    try:
        x = np.asarray(x) if getattr(x, "dtype", None) == np.float32 else np.asarray(x, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise HandfulError("vectors (rows, features) of numbers are needed") from error
    count = len(y) if hasattr(y, "__len__") else None
    if x.ndim != 2 or not x.size or count != len(x):
        raise HandfulError(f"vectors (rows, features) and a label each are needed, got {x.shape} and {count} labels")
    if not np.isfinite(x).all():
        raise HandfulError("vectors must be finite numbers, got NaN or infinity")
    try:
        labels, _ = read_labels(y, len(x))
    except ValueError as error:
        raise HandfulError(str(error)) from error
    if (labels < 0).any():
        raise HandfulError(
            f"{(labels < 0).sum()} rows have no label: a head learns from labelled rows only, leave them out"
        )
    # Only directions count: float64 may hold lengths that float32 cannot.
    return x if x.dtype == np.float32 else unit(x, 0).astype(np.float32), labels


def _kept_out(base: _Classes, seed: int) -> tuple[_Classes, _Classes]:
    """Most of the classes, and the fifth that is kept out."""
    x, labels = base.x, base.labels
    classes = np.random.default_rng([seed, 2]).permutation(np.unique(labels))
    out = np.isin(labels, classes[: max(2, round(0.2 * len(classes)))])
    return _Classes(x[~out], labels[~out]), _Classes(x[out], labels[out])
