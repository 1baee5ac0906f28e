"""The estimator on very many rows: read in chunks, against the same steps on a prepared copy; time and memory."""

from __future__ import annotations

from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from ..estimator.classifier import TACClassifier
from ..estimator.refinement import LEAD
from .measure import Bench, in_own_process, timed_with_memory

DIM, WAYS, SHOTS, ITERATIONS = 512, 20, 5, 6
SIZES = (10_000, 100_000)
Rows = NDArray[np.float32]


def bench_fit(repeats: int = 3, *, curves: bool = True, points: int | None = None) -> Bench:
    """``TACClassifier.fit`` on 10,000 and 100,000 rows, or as many as wanted."""
    sizes = [size for size in SIZES if points is None or size < points] + ([points] if points else [])
    bench = Bench(f"TACClassifier.fit, {WAYS} classes of {SHOTS} labels, {DIM} features, float32")
    for size in sizes:
        ways = [way for way in _WAYS if way != "plain" or size <= max(SIZES)]  # more copies may not fit into memory
        found = {way: in_own_process(_task, way, size, repeats) for way in ways}
        for way, (seconds, extra) in found.items():
            bench.rows.append({
                "rows": size, "way": _WAYS[way], "seconds": seconds, "memory beyond X (MiB)": extra / 2**20,
                "ours is faster": seconds / found["ours"][0],
            })  # fmt: skip
    return bench


_WAYS = {
    "ours": "ours",
    "distractors": "ours, distractors=True",
    "plain": "a prepared copy, all rows at once",
}


def _task(pipe: Connection, way: str, size: int, repeats: int) -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(WAYS, DIM)).astype(np.float32)
    x = np.empty((size, DIM), dtype=np.float32)
    y = np.full(size, -1)
    y[: WAYS * SHOTS] = np.repeat(np.arange(WAYS), SHOTS)
    for start in range(0, size, 10_000):
        part = x[start : start + 10_000]
        rng.standard_normal(out=part, dtype=np.float32)
        labels = y[start : start + len(part)].copy()
        labels[labels < 0] = rng.integers(WAYS, size=(labels < 0).sum())
        part *= 3
        part += centres[labels] + 1
    run = _plain if way == "plain" else partial(_ours, way == "distractors")
    run(x[:2000], y[:2000])  # what a first call loads is not the task's memory
    pipe.send(timed_with_memory(lambda: run(x, y), repeats))


def _ours(distractors: bool, x: Rows, y: NDArray[np.int64]) -> Any:
    return TACClassifier(distractors=distractors, iterations=ITERATIONS).fit(x, y).transduction_


def _plain(x: Rows, y: NDArray[np.int64]) -> Any:
    """Centred unit rows as a copy; cosines, soft labels and means for all of them at once."""
    rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    rows = rows - rows.mean(0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
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
