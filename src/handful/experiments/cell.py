"""One cell of a grid: a training and what is measured with its weights; all that it leaves behind is in its run folder.

``cell.json`` beside the run's files holds every measurement so far. A cell is finished when it has all that are asked
for, so another command may ask for more of the same weights, and only what is new is measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..errors import HandfulError
from ..io import read_object, refuse_links, write_json
from ..runs.config import RunConfig, read_config
from ..runs.episodes import Protocol
from ..runs.results import CELL, Result, format_accuracy, is_number, measured, measurement_key
from ..runs.tuning import MULTIPLIERS, TRIAL_EPISODES

__all__ = ["Cell", "Measurement", "Outcome", "finished", "format_accuracy", "mean_over_seeds", "measured", "worked"]


@dataclass(frozen=True)
class Measurement:
    """What is measured with a run's weights.

    Attributes:
        protocol: the test.
        method: the weights are evaluated as this one, as ``tapnet-semi`` can be with a run of ``tapnet``.
        iterations: refinements; None for those that are best on the validation classes.
        tuned: whether the scale of the soft labels is chosen there, too.
        trials: sets of values of the method's tunable options that are compared there instead; 0 for none.
        options: of a method that uses the backbone alone; None for the run's weights as they are.
    """

    protocol: Protocol
    method: str
    iterations: int | None = None
    tuned: bool = False
    trials: int = 0
    options: tuple[tuple[str, Any], ...] | None = None

    def choice(self) -> dict[str, Any]:
        """How `evaluate_run` is to evaluate the weights."""
        return {
            "method": self.method, "iterations": self.iterations, "tuned": self.tuned, "trials": self.trials,
            "options": None if self.options is None else dict(self.options),
        }  # fmt: skip

    def key(self) -> str:
        """What names it in ``cell.json``."""
        asked: dict[str, Any] = {"method": self.method, "iterations": self.iterations}
        asked["protocol"] = self.protocol.to_json()
        if self.tuned:
            asked["tuned"] = sorted(MULTIPLIERS)
        if self.trials:
            asked["trials"] = [self.trials, TRIAL_EPISODES]
        if self.options is not None:
            asked["options"] = dict(self.options)
        return measurement_key(asked)


@dataclass(frozen=True)
class Cell:
    """One training and what is measured with its weights.

    Attributes:
        name: of its run folder; no other cell of the grid has it.
        config: the training.
        measurements: what is measured.
        given: whether its run folder is there from elsewhere, to be measured as it is and never trained.
    """

    name: str
    config: RunConfig
    measurements: tuple[Measurement, ...]
    given: bool = False


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
    results: list[Result] | None = None
    skipped: bool = False
    reason: str | None = None
    traceback: str | None = None

    def line(self) -> str:
        """What the cell has become, in one line."""
        if self.results is None:
            return f"{self.name}: failed: {self.reason}"
        first = self.results[0]
        before = ", finished before" if self.skipped else ""
        return f"{self.name}: {format_accuracy(first.mean, first.interval)} %{before}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Outcome:
        """As `to_json` gave it, in another process."""
        results = content["results"]
        return cls(**{**content, "results": results and [Result.from_json(result) for result in results]})


def finished(cell: Cell, folder: Path) -> list[Result] | None:
    """The results of a cell that is done; None if it is not; an error if the folder is that of another cell."""
    run = folder / cell.name
    refuse_links(folder, cell.name)
    if (run / "config.json").exists() and (differences := read_config(run).differences(cell.config)):
        raise HandfulError(f"{run} holds another run, which differs in {differences[0]}: choose another --out")
    known = measured(run)
    found = [known.get(measurement.key()) for measurement in cell.measurements]
    return None if None in found else [result for result in found if result is not None]


def write_measured(run: Path, cell: Cell, known: dict[str, Result], threads: int, seconds: float) -> None:
    """Keep all measurements of a run folder, with the settings of its training."""
    entries = [{"asked": json.loads(key), "result": result.to_json()} for key, result in known.items()]
    content = {"config": cell.config.to_json(), "measured": entries, "threads": threads}
    write_json(run / CELL, {**content, "wall_seconds": seconds})


def worked(run: Path) -> float:
    """Seconds that workers have spent on a run folder; those of a killed one are lost."""
    path = run / CELL
    seconds: Any = read_object(path).get("wall_seconds") if path.exists() else 0.0
    if not is_number(seconds, 0.0):
        raise HandfulError(
            f"{path} is damaged, it has wall seconds of {seconds!r:.60}: remove it to evaluate the run again"
        )
    return float(seconds)


def mean_over_seeds(found: Sequence[tuple[float, float | None]]) -> tuple[float | None, float | None]:
    """Mean accuracy of cells that differ in their seed only, and its 95 % interval; None for what is not known.

    Each is given as its mean and its interval. Over several seeds the interval is Student's t of their means, which
    includes the variance between training runs; for one it is that over the episodes.

    >>> mean_over_seeds([(70.0, 0.1)])
    (70.0, 0.1)
    >>> mean, interval = mean_over_seeds([(69.0, 0.1), (70.0, 0.1), (71.0, 0.1)])
    >>> f"{mean} ± {interval:.2f}"
    '70.0 ± 2.48'
    """
    if len(found) < 2:
        return found[0] if found else (None, None)
    means = np.array([mean for mean, _ in found])
    half = stdtrit(len(means) - 1, 0.975) * means.std(ddof=1) / math.sqrt(len(means))
    return float(means.mean()), float(half)
