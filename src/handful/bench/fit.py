"""The estimator on very many rows: fit, and refit after a label, against plain ways; time and memory, one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from sklearn.semi_supervised import LabelSpreading
from threadpoolctl import threadpool_limits

from ..estimator.classifier import TACClassifier
from ..estimator.refinement import LEAD
from .measure import Bench, in_own_process, timed_with_memory

WAYS, SHOTS, ITERATIONS = 20, 5, 6
SIZES = (10_000, 100_000)
POINTS = 1_000_000  # rows of the largest task
DIM, LARGE_DIM = 1280, 512  # features; those of tasks that are larger than all of SIZES
CHUNK = 10_000
Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


def bench_fit(repeats: int = 3, *, curves: bool = True, points: int | None = None) -> Bench:
    """``TACClassifier`` on 10,000, 100,000 and a million rows, or as many as wanted."""
    points = points or POINTS
    bench = Bench(f"TACClassifier, {WAYS} classes of {SHOTS} labels, float32; seconds of one core")
    for size in [size for size in SIZES if size < points] + [points]:
        dim = DIM if size <= max(SIZES) else LARGE_DIM
        ways = {way: most for way, (_, most, _) in _TASKS.items() if most is None or size <= most}
        found = {way: in_own_process(_task, way, (size, dim), repeats) for way in ways}
        for way, (seconds, extra) in found.items():
            bench.rows.append({
                "rows": size, "features": dim, "way": way, "seconds": seconds,
                "memory beyond X (MiB)": extra / 2**20, "times fit": round(seconds / found["fit"][0], 3),
            })  # fmt: skip
    return bench


def _task(pipe: Connection, way: str, shape: tuple[int, int], repeats: int) -> None:
    with threadpool_limits(1):
        x, y = _rows(*shape)
        prepare, _, run = _TASKS[way]
        run(prepare(x[:2000], y[:2000]), x[:2000], y[:2000])  # what a first call loads is not the task's memory
        ready = prepare(x, y)
        pipe.send(timed_with_memory(lambda: run(ready, x, y), repeats, time.process_time))


def _rows(size: int, dim: int) -> tuple[Rows, Labels]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(WAYS, dim)).astype(np.float32)
    x = np.empty((size, dim), dtype=np.float32)
    y = np.full(size, -1)
    y[: WAYS * SHOTS] = np.repeat(np.arange(WAYS), SHOTS)
    for start in range(0, size, CHUNK):
        part = x[start : start + CHUNK]
        rng.standard_normal(out=part, dtype=np.float32)
        labels = y[start : start + len(part)].copy()
        labels[labels < 0] = rng.integers(WAYS, size=(labels < 0).sum())
        part *= 3
        part += centres[labels] + 1
    return x, y


def _nothing(x: Rows, y: Labels) -> None:
    return None


def _fitted(x: Rows, y: Labels) -> TACClassifier:
    return TACClassifier(iterations=ITERATIONS).fit(x, y)


def _fit(_: None, x: Rows, y: Labels) -> Any:
    return _fitted(x, y).transduction_


def _refit(model: TACClassifier, x: Rows, y: Labels) -> Any:
    return model.refit(_clicked(y), check=False).transduction_


def _checked(model: TACClassifier, x: Rows, y: Labels) -> Any:
    return model.refit(_clicked(y)).transduction_


def _clicked(y: Labels) -> Labels:
    """One more label, as after a click."""
    more: Labels = y.copy()
    more[-1] = 0
    return more


def _prepared(x: Rows, centre: Rows | None = None) -> tuple[Rows, Rows]:
    """Centred unit rows as a copy, and the centre: their mean, or a given one."""
    rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    centre = rows.mean(0) if centre is None else centre
    rows = rows - centre
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows, centre


def _logistic(_: None, x: Rows, y: Labels) -> Any:
    """On the labelled rows alone; the others are predicted a chunk at a time."""
    rows, centre = _prepared(x[y >= 0])
    model = LogisticRegression(C=10, max_iter=200).fit(rows, y[y >= 0])
    parts = (_prepared(x[start : start + CHUNK], centre)[0] for start in range(0, len(x), CHUNK))
    return np.concatenate([model.predict(part) for part in parts])


def _spreading(_: None, x: Rows, y: Labels) -> Any:
    return LabelSpreading(kernel="knn", n_neighbors=10, max_iter=100).fit(_prepared(x)[0], y).transduction_


def _plain(ready: None, x: Rows, y: Labels) -> Any:
    """Centred unit rows as a copy; cosines, soft labels and means for all of them at once."""
    rows, _centre = _prepared(x)
    given = np.eye(WAYS, dtype=np.float32)[y[y >= 0]]
    total = given.T @ rows[y >= 0]
    means = total
    for _ in range(ITERATIONS):
        cosines = rows @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
        ordered = np.sort(cosines, axis=1)
        soft = softmax(LEAD / (ordered[:, -1] - ordered[:, -2]).mean() * cosines, axis=1)
        soft[y >= 0] = 0
        means = total + soft.T @ rows
    return (rows @ means.T).argmax(1)


# By their names in the table: what is done before the clock starts, the most rows it is tried on, and what is timed.
# More rows would not fit into memory, or take hours. "refit unchecked" is `check=False`; "soft k-means" works on a
# prepared copy of all rows.
_TASKS: dict[str, tuple[Callable[..., Any], int | None, Callable[..., Any]]] = {
    "fit": (_nothing, None, _fit),
    "refit unchecked": (_fitted, None, _refit),
    "refit": (_fitted, None, _checked),
    "soft k-means": (_nothing, 100_000, _plain),
    "logistic regression": (_nothing, None, _logistic),
    "LabelSpreading": (_nothing, 10_000, _spreading),
}
