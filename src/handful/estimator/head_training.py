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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .. import functional as F
from ..datasets.base import Bar, no_bar
from ..errors import HandfulError
from ..sampling import EpisodeSampler, EpisodeSpec, split_labelled
from .classifier import TACClassifier, read_labels
from .clustering import Frame, Points, unit
from .head import Head
from .tasks import TaskKind, draw_tasks

SHRINKAGES = (0.3, 1.0, 3.0, 10.0, 30.0)
TASKS = ((5, 1), (5, 5), (20, 1))  # ways and shots of the tasks that heads are judged by, as far as there are classes
UNLABELLED = 80  # rows a class in these
WAYS, QUERIES, EPISODE_UNLABELLED = 20, 8, 10  # of the episodes that references are learned with
RATE = 3e-3
Floats = NDArray[np.float32]


def train_head(
    X: Any,  # noqa: N803 - as in scikit-learn
    y: Any,
    *,
    validation: tuple[Any, Any] | None = None,
    name: str = "head",
    references: Any = None,
    episodes: int = 1000,
    tasks: int = 40,
    seed: int = 0,
    bar: Bar = no_bar,
) -> Head:
    """Learn a head for an embedder on labelled vectors of base classes.

    Args:
        X: (rows, features) vectors of the base classes.
        y: (rows,) their labels.
        validation: X and y of other classes; by default a fifth of the classes is kept out for it.
        name: of the head.
        references: (most classes, features) that were learned together with the embedder, to be tried as they are.
        episodes: to learn references with; 0 tries none.
        tasks: of each kind, to judge by.
        seed: fixes everything.
        bar: a progress bar.

    Returns:
        The best of what was tried; its ``facts["tried"]`` has the accuracies of all.
    """
    if tasks < 1 or episodes < 0:
        raise HandfulError(
            f"a head is judged by one task or more, and learns from none or more, got {tasks}, {episodes}"
        )
    x, labels = _checked(X, y)
    if validation is None:
        x, labels, other_x, other_labels = _kept_out(x, labels, seed)
    else:
        other_x, other_labels = _checked(*validation)
    classes, other_classes = len(np.unique(labels)), len(np.unique(other_labels))
    if other_classes < 2 or classes < 2:
        raise HandfulError(
            f"a head needs two classes to learn from and two to judge by, got {classes}, {other_classes}"
        )
    features = x.shape[1]
    if other_x.shape[1] != features:
        raise HandfulError(f"the vectors to learn from have {features} features, those to judge by {other_x.shape[1]}")
    maps: dict[float | None, Floats | None] = {None: None}
    maps.update({shrinkage: whitening(x, labels, shrinkage) for shrinkage in SHRINKAGES})
    tick = bar("judging heads", (len(maps) + 2) * tasks * len(TASKS))

    def judge(head: Head) -> dict[str, float]:
        return accuracies(head, other_x, other_labels, tasks, seed, tick)

    tried: list[tuple[Head, dict[str, float], str]] = []
    for shrinkage, mapping in maps.items():
        head = Head(name, features, mapping)
        what = "no map" if mapping is None else f"map, shrinkage {shrinkage:g}"
        tried.append((head, judge(head), what))
    mapped = max(tried, key=lambda entry: _mean(entry[1]))[0]
    if references is not None:
        own = Head(name, features, None, np.asarray(references, dtype=np.float32))
        tried.append((own, judge(own), "the embedder's own references"))
    if episodes:
        learned = learn_references(x, labels, mapped, episodes, seed, bar)
        tried.append((learned, judge(learned), f"that map, {episodes} episodes of TAC"))
    best = max(tried, key=lambda entry: _mean(entry[1]))
    facts = {
        "base": {"classes": classes, "rows": len(x)},
        "validation": {"classes": other_classes, "rows": len(other_x), "tasks of each kind": tasks},
        "chosen": best[2],
        "tried": {what: {task: round(value, 2) for task, value in found.items()} for _, found, what in tried},
        "seed": seed,
    }
    return Head(name, features, best[0].map, best[0].references, facts)


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


def _mean(found: dict[str, float]) -> float:
    return float(np.mean(list(found.values())))


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


def _kept_out(x: Floats, labels: NDArray[np.int64], seed: int) -> tuple[Any, ...]:
    classes = np.random.default_rng([seed, 2]).permutation(np.unique(labels))
    out = np.isin(labels, classes[: max(2, round(0.2 * len(classes)))])
    return x[~out], labels[~out], x[out], labels[out]
