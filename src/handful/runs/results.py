"""What was measured with the weights of a run: ``cell.json`` in its folder, read and checked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import HandfulError
from ..io import read_object

RESULT = "cell.json"


def measurement_key(asked: dict[str, Any]) -> str:
    """What names a measurement in ``cell.json``."""
    return json.dumps(asked, sort_keys=True)


def measured(run: Path) -> dict[str, dict[str, Any]]:
    """All measurements of a run folder so far, by their key."""
    path = run / RESULT
    if not path.exists():
        return {}
    content = read_object(path)
    try:
        found = {measurement_key(entry["asked"]): dict(entry["result"]) for entry in content["measured"]}
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


def worked(run: Path) -> float:
    """Seconds that workers have spent on a run folder; those of a killed one are lost."""
    path = run / RESULT
    seconds: Any = read_object(path).get("wall_seconds") if path.exists() else 0.0
    if not _number(seconds, 0.0, sys.float_info.max):
        raise HandfulError(
            f"{path} is damaged, it has wall seconds of {seconds!r:.60}: remove it to evaluate the run again"
        )
    return float(seconds)


def format_accuracy(mean: float | None, interval: float | None) -> str:
    """In percent, for people.

    >>> format_accuracy(55.5, 0.123)
    '55.50 ± 0.12'
    """
    if mean is None:
        return "failed"
    return f"{mean:.2f} ± {'unknown' if interval is None else f'{interval:.2f}'}"
