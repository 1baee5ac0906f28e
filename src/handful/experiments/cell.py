"""One cell of a grid: a training and what is measured with its weights; all that it leaves behind is in its run folder.

``cell.json`` beside the run's files holds every measurement so far. A cell is finished when it has all that are asked
for, so another command may ask for more of the same weights, and only what is new is measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..errors import HandfulError
from ..io import refuse_links, write_json
from ..runs.config import RunConfig, read_config
from ..runs.episodes import Protocol
from ..runs.results import RESULT, format_accuracy, measured, measurement_key


@dataclass(frozen=True)
class Measurement:
    """What is measured with a run's weights.

    Attributes:
        protocol: the test.
        method: the weights are evaluated as this one, as ``tapnet-semi`` can be with a run of ``tapnet``.
        iterations: refinements; None for those that are best on the validation classes.
    """

    protocol: Protocol
    method: str
    iterations: int | None = None

    def key(self) -> str:
        """What names it in ``cell.json``."""
        return measurement_key(
            {"method": self.method, "protocol": self.protocol.to_json(), "iterations": self.iterations}
        )


@dataclass(frozen=True)
class Cell:
    """One training and what is measured with its weights.

    Attributes:
        name: of its run folder; no other cell of the grid has it.
        config: the training.
        measurements: what is measured.
    """

    name: str
    config: RunConfig
    measurements: tuple[Measurement, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a cell.

    Attributes:
        name: of the cell.
        results: one per measurement, as `evaluate_run` gives them; None for a cell that failed.
        skipped: whether it was finished before.
        reason: why it failed, in one sentence.
        traceback: of a failure that nobody foresaw.
    """

    name: str
    results: list[dict[str, Any]] | None = None
    skipped: bool = False
    reason: str | None = None
    traceback: str | None = None

    def line(self) -> str:
        """What the cell has become, in one line."""
        if self.results is None:
            return f"{self.name}: failed: {self.reason}"
        first = self.results[0]
        accuracy = format_accuracy(first["mean"], first["interval"])
        return f"{self.name}: {accuracy} %" + (", finished before" if self.skipped else "")


def finished(cell: Cell, folder: Path) -> list[dict[str, Any]] | None:
    """The results of a cell that is done; None if it is not; an error if the folder is that of another cell."""
    run = folder / cell.name
    refuse_links(folder, cell.name)
    if (run / "config.json").exists() and (differences := read_config(run).differences(cell.config)):
        raise HandfulError(f"{run} holds another run, which differs in {differences[0]}: choose another --out")
    known = measured(run)
    found = [known.get(measurement.key()) for measurement in cell.measurements]
    return None if None in found else [result for result in found if result is not None]


def write_measured(run: Path, cell: Cell, known: dict[str, dict[str, Any]], threads: int, seconds: float) -> None:
    """Keep all measurements of a run folder, with the settings of its training."""
    entries = [{"asked": json.loads(key), "result": result} for key, result in known.items()]
    content = {"config": cell.config.to_json(), "measured": entries, "threads": threads}
    write_json(run / RESULT, {**content, "wall_seconds": seconds})


def mean_over_seeds(results: Sequence[dict[str, Any]]) -> tuple[float | None, float | None]:
    """Mean accuracy of cells that differ in their seed only, and its 95 % interval; None for what is not known.

    Over several seeds the interval is Student's t of their means, which sees the luck of the training as well; for one
    it is that over the episodes.

    >>> mean_over_seeds([{"mean": 70.0, "interval": 0.1}])
    (70.0, 0.1)
    >>> mean, interval = mean_over_seeds([{"mean": m, "interval": 0.1} for m in (69.0, 70.0, 71.0)])
    >>> f"{mean} ± {interval:.2f}"
    '70.0 ± 2.48'
    """
    if len(results) < 2:
        return (results[0]["mean"], results[0]["interval"]) if results else (None, None)
    means = np.array([result["mean"] for result in results])
    half = stdtrit(len(means) - 1, 0.975) * means.std(ddof=1) / math.sqrt(len(means))
    return float(means.mean()), float(half)
