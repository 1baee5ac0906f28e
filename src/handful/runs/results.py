"""Results: what was measured with a run on test classes, as files hold it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import HandfulError
from ..io import read_object

CELL = "cell.json"  # all measurements of a run folder that is a cell of a grid


class Unsound(HandfulError):  # noqa: N818 - reads better
    """What no measurement can have given."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The training behind a result.

    Attributes:
        method, spec, seed: of the training.
        episodes, episodes_planned: after how many these weights were the best, and how many were wanted.
        val_accuracy: of these weights, in percent.
    """

    method: str = ""
    episodes: int
    episodes_planned: int | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    val_accuracy: float
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """A measurement of a run on test classes.

    Attributes:
        method, title: evaluated as; its name and its title.
        run: the run folder, or the name of a model that comes with the package.
        dataset, data_options, fingerprint: the test images.
        split: ``test``, or ``val`` for a look at validation classes.
        protocol: of the test, as `Protocol.to_json` gives it; its ``seed`` is also here.
        n: test episodes in all.
        mean, interval, split_means, split_interval, episodes, iterations, by_iteration, intervals: see `Accuracy`;
            the intervals are None where there is but one episode.
        iterations_chosen_on: ``validation classes``, or None if their number was given.
        cluster_multiplier: of ``cluster_scale``, chosen on the validation classes; None if it was not (`tuning`).
        trials: pairs of a multiplier and a number of refinements, or sets of ``values``, that were compared there; 0 if
            none were.
        values: of the method's options, chosen there.
        trained: the training behind it.
        wall_seconds, episodes_per_second, torch: how long it took, how fast the episodes were, on which PyTorch.
        processor_seconds: time of all processor cores for the episodes, which other processes do not add to.
    """

    method: str
    title: str
    run: str = ""
    dataset: str
    data_options: dict[str, Any]
    fingerprint: str
    protocol: dict[str, Any]
    seed: int = 0
    n: int
    mean: float
    interval: float | None
    split_means: list[float] = field(default_factory=list)
    split_interval: float | None
    episodes: int = 0
    iterations: int
    by_iteration: list[float] = field(default_factory=list)
    intervals: list[float] | None = None
    iterations_chosen_on: str | None
    cluster_multiplier: float | None = None
    trials: int = 0
    values: dict[str, Any] = field(default_factory=dict)
    trained: Trained
    wall_seconds: float = 0.0
    episodes_per_second: float = 0.0
    processor_seconds: float = 0.0
    torch: str = ""
    split: str = "test"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Any, needed: Sequence[str] = ()) -> Result:
        """A result as `to_json` gives it; one that was kept before some of its fields were may be without them.

        Those without a default, and the ``needed``, must be there.

        Raises:
            Unsound: if it has what no measurement can have given, in words that go after "it has".
        """
        required = [entry.name for entry in fields(cls) if entry.default is entry.default_factory is MISSING]
        if wrong := unsound(content, (*required, *needed)):
            raise Unsound(wrong)
        trained = Trained(**_known(Trained, content["trained"]))
        return cls(**{**_known(cls, content), "trained": trained})


def _known(cls: type, content: dict[str, Any]) -> dict[str, Any]:
    """What a dataclass has fields for."""
    return {entry.name: content[entry.name] for entry in fields(cls) if entry.name in content}


def format_accuracy(mean: float | None, interval: float | None) -> str:
    """In percent, for people.

    >>> format_accuracy(55.5, 0.123)
    '55.50 ± 0.12'
    """
    if mean is None:
        return "failed"
    return f"{mean:.2f} ± {'unknown' if interval is None else f'{interval:.2f}'}"


def measured(run: Path) -> dict[str, Result]:
    """All measurements of a run folder so far, by their key."""
    path = run / CELL
    if not path.exists():
        return {}
    content = read_object(path)
    try:
        return {
            measurement_key(entry["asked"]): Result.from_json(entry["result"], ("by_iteration", "intervals"))
            for entry in content["measured"]
        }
    except Unsound as error:
        raise HandfulError(f"{path} is damaged, it has {error}: remove it to evaluate the run again") from error
    except (KeyError, TypeError, ValueError) as error:
        raise HandfulError(f"{path} is not the result of a cell: remove it to evaluate the run again") from error


def measurement_key(asked: dict[str, Any]) -> str:
    """What names a measurement in ``cell.json``: what was asked for."""
    return json.dumps(asked, sort_keys=True)


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


def is_number(value: Any, least: float, most: float = sys.float_info.max) -> bool:
    """Whether a value from a file is a number in a range."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most  # no NaN is


def _count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _percent(value: Any) -> bool:
    return is_number(value, 0.0, 100.0)


def _width(value: Any) -> bool:
    return value is None or is_number(value, 0.0)


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
    **dict.fromkeys(
        ("method", "title", "run", "dataset", "fingerprint", "split", "torch"), lambda value: isinstance(value, str)
    ),
    **dict.fromkeys(("wall_seconds", "episodes_per_second", "processor_seconds"), lambda value: is_number(value, 0.0)),
    "cluster_multiplier": lambda value: value is None or is_number(value, 0.0),
    "trials": lambda value: _count(value, 0),
    "iterations_chosen_on": lambda value: value is None or isinstance(value, str),
    **dict.fromkeys(("data_options", "values"), lambda value: isinstance(value, dict)),
    "seed": lambda value: _count(value, 0),
    "protocol": lambda value: isinstance(value, dict) and isinstance(value.get("description"), str) and "spec" in value,
    "trained": _training,
}
