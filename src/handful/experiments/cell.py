"""One cell of a grid: a training and what is measured with its weights; all that it leaves behind is in its run folder.

``cell.json`` beside the run's files holds every measurement so far. A cell is finished when it has all that are asked
for, so another command may ask for more of the same weights, and only what is new is measured.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from ..errors import HandfulError
from ..io import read_object, refuse_links, write_json
from ..runs.config import RunConfig, read_config
from ..runs.episodes import Protocol

RESULT = "cell.json"


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
        return _key({"method": self.method, "protocol": self.protocol.to_json(), "iterations": self.iterations})


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


def format_accuracy(mean: float | None, interval: float | None) -> str:
    """In percent, for people.

    >>> format_accuracy(55.5, 0.123)
    '55.50 ± 0.12'
    """
    if mean is None:
        return "failed"
    return f"{mean:.2f} ± {'unknown' if interval is None else f'{interval:.2f}'}"


def finished(cell: Cell, folder: Path) -> list[dict[str, Any]] | None:
    """The results of a cell that is done; None if it is not; an error if the folder is that of another cell."""
    run = folder / cell.name
    refuse_links(folder, cell.name)
    if (run / "config.json").exists() and (differences := read_config(run).differences(cell.config)):
        raise HandfulError(f"{run} holds another run, which differs in {differences[0]}: choose another --out")
    known = measured(run)
    found = [known.get(measurement.key()) for measurement in cell.measurements]
    return None if None in found else [result for result in found if result is not None]


def measured(run: Path) -> dict[str, dict[str, Any]]:
    """All measurements of a run folder so far, by their key."""
    path = run / RESULT
    if not path.exists():
        return {}
    content = read_object(path)
    try:
        found = {_key(entry["asked"]): dict(entry["result"]) for entry in content["measured"]}
    except (KeyError, TypeError, ValueError) as error:
        raise HandfulError(f"{path} is not the result of a cell: remove it to evaluate the run again") from error
    for result in found.values():
        if wrong := unsound(result, ("by_iteration", "intervals", "split_interval", "title", "trained")):
            raise HandfulError(f"{path} is damaged, it has {wrong}: remove it to evaluate the run again")
    return found


def unsound(result: Any, needed: Sequence[str] = ()) -> str | None:
    """What no measurement can have given, in words; None if there is nothing. The ``needed`` entries must be there.

    >>> unsound({"mean": 934.0, "interval": 0.1, "n": 600, "iterations": 1})
    'a mean of 934.0'
    """
    if not isinstance(result, dict):
        return "a result that is not an object"
    for name in ("mean", "interval", "n", "iterations", *needed):
        if name not in result:
            return f"a result without its {name}"
    for name, sound in _SOUND.items():
        if name in result and not sound(result[name]):
            article = "an" if name[0] in "aeiou" else "a"
            return f"{article} {name.replace('_', ' ')} of {result[name]!r:.60}"
    return None


def _number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most  # no NaN is


def _count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _percent(value: Any) -> bool:
    return _number(value, 0.0, 100.0)


def _width(value: Any) -> bool:
    return value is None or _number(value, 0.0, sys.float_info.max)


def _training(value: Any) -> bool:
    """What a result says of the training behind it: episodes and validation accuracy at least."""
    return isinstance(value, dict) and _count(value.get("episodes"), 0) and _percent(value.get("val_accuracy"))


# What each entry of a result can be; half-widths of intervals are None where there is but one episode or split.
_SOUND: dict[str, Callable[[Any], bool]] = {
    "mean": _percent,
    "interval": _width,
    "split_interval": _width,
    "split_means": lambda value: isinstance(value, list) and all(map(_percent, value)),
    "by_iteration": lambda value: isinstance(value, list) and len(value) > 0 and all(map(_percent, value)),
    "intervals": lambda value: value is None or (isinstance(value, list) and all(map(_width, value))),
    "n": lambda value: _count(value, 1),
    "episodes": lambda value: _count(value, 1),
    "iterations": lambda value: _count(value, 0),
    "method": lambda value: isinstance(value, str),
    "title": lambda value: isinstance(value, str),
    "dataset": lambda value: isinstance(value, str),
    "fingerprint": lambda value: isinstance(value, str),
    "protocol": lambda value: isinstance(value, dict) and isinstance(value.get("description"), str) and "spec" in value,
    "trained": _training,
}


def write_measured(run: Path, cell: Cell, known: dict[str, dict[str, Any]], threads: int, seconds: float) -> None:
    """Keep all measurements of a run folder, with the settings of its training."""
    entries = [{"asked": json.loads(key), "result": result} for key, result in known.items()]
    content = {"config": cell.config.to_json(), "measured": entries, "threads": threads}
    write_json(run / RESULT, {**content, "wall_seconds": seconds})


def worked(run: Path) -> float:
    """Seconds that workers have spent on a run folder; those of a killed one are lost."""
    path = run / RESULT
    seconds: Any = read_object(path).get("wall_seconds") if path.exists() else 0.0
    if not _number(seconds, 0.0, sys.float_info.max):
        raise HandfulError(
            f"{path} is damaged, it has wall seconds of {seconds!r:.60}: remove it to evaluate the run again"
        )
    return float(seconds)


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


def _key(asked: dict[str, Any]) -> str:
    return json.dumps(asked, sort_keys=True)
