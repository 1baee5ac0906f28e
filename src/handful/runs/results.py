"""Results: a run measured on test classes, and what was measured before, as files hold it."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..datasets import ImageSet, dataset_spec
from ..datasets.base import Bar, no_bar
from ..embedders.shipped import is_shipped
from ..errors import HandfulError
from ..io import read_object, refuse_links, write_json
from ..machine import compute_device
from .config import MOST_REFINEMENTS, MOST_SEED, RunConfig, check_range
from .episodes import Accuracy, Protocol, choose_iterations, embed, evaluate
from .folder import check_unseen, load_images, load_run
from .vectors import kept_vectors

CELL = "cell.json"  # all measurements of a run folder that is a cell of a grid
MOST_EPISODES = 10**7  # of all splits of a protocol, whose accuracies are kept in memory


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
        protocol: of the test, as `Protocol.to_json` gives it; its ``seed`` is also here.
        n: test episodes in all.
        mean, interval, split_means, split_interval, episodes, iterations, by_iteration, intervals: see `Accuracy`;
            the intervals are None where there is but one episode.
        iterations_chosen_on: ``validation classes``, or None if their number was given.
        trained: the training behind it.
        wall_seconds, episodes_per_second, torch: how long it took, how fast the episodes were, on which PyTorch.
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
    trained: Trained
    wall_seconds: float = 0.0
    episodes_per_second: float = 0.0
    torch: str = ""

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
        ("method", "title", "run", "dataset", "fingerprint", "torch"), lambda value: isinstance(value, str)
    ),
    **dict.fromkeys(("wall_seconds", "episodes_per_second"), lambda value: is_number(value, 0.0)),
    "iterations_chosen_on": lambda value: value is None or isinstance(value, str),
    "data_options": lambda value: isinstance(value, dict),
    "seed": lambda value: _count(value, 0),
    "protocol": lambda value: isinstance(value, dict) and isinstance(value.get("description"), str) and "spec" in value,
    "trained": _training,
}


def _check_protocol(protocol: Protocol, iterations: int | None) -> None:
    for name in ("splits", "episodes"):
        check_range(name, getattr(protocol, name), 1, MOST_EPISODES)
    check_range("splits times episodes", protocol.splits * protocol.episodes, 1, MOST_EPISODES)
    check_range("the seed", protocol.seed, 0, MOST_SEED)
    check_range("iterations", iterations or 0, 0, MOST_REFINEMENTS)


class Embedded:
    """The vectors of one model's images, each embedded once, for several measurements; the disk keeps them, too."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Tensor] = {}

    def vectors(self, backbone: nn.Module, images: ImageSet, bar: Bar) -> Tensor:
        key = (images.split, images.fingerprint())
        if key not in self._known:
            pixels = images.images
            self._known[key] = kept_vectors(
                backbone, pixels, lambda: embed(backbone, pixels, progress=bar("embedding", len(pixels)))
            )
        return self._known[key]


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """The data that a run is measured on, where they are not those of the run.

    Attributes:
        dataset, data: another data set, or another place of its files.
        data_options: options of the data set; those of the run by default, as far as the data set is the same.
        strict: refuse files of which some cannot be read.
    """

    dataset: str | None = None
    data: str | None = None
    data_options: dict[str, Any] | None = None
    strict: bool = False

    def apply(self, config: RunConfig) -> RunConfig:
        """The settings of a run with the data that it is measured on."""
        if self.dataset is not None and self.dataset != config.dataset:
            sized = {"image_size": config.image_size} if "image_size" in dataset_spec(self.dataset).options else {}
            config = replace(config, dataset=self.dataset, data=None, data_options=sized)
        options = {**config.data_options, **(self.data_options or {})}
        return replace(config, data=self.data or config.data, data_options=options)


def evaluate_run(
    folder: Path,
    protocol: Protocol,
    *,
    method: str | None = None,
    iterations: int | None = None,
    device: str = "auto",
    bar: Bar | None = None,
    embedded: Embedded | None = None,
    **choice: Any,
) -> Result:
    """Measure a run folder on test classes; the result is returned, and kept in ``folder/results``
    unless the folder is that of a model that comes with the package, which is not written to.

    Args:
        folder: a run of ``handful train``, or a model (:func:`handful.embedders.shipped.model_folder`).
        protocol: what is measured.
        method: evaluate the weights as another method that learns the same things.
        iterations: refinements; None chooses them on the validation classes.
        device: auto, cpu, cuda or mps.
        bar: ``bar(what, total)`` opens a progress bar and gives the function that moves it.
        embedded: keeps the vectors of the run's images for the next measurement of the same run.
        choice: of :class:`DataChoice`: ``dataset``, ``data``, ``data_options``, ``strict``.
    """
    chosen = DataChoice(**choice)
    _check_protocol(protocol, iterations)
    refuse_links(folder, "results")
    trained, learner, state = load_run(folder, method)
    config = chosen.apply(trained)
    learner.to(compute_device(device))
    started, tick, embedded = time.perf_counter(), bar or no_bar, embedded or Embedded()
    test = load_images(config, "test", strict=chosen.strict, bar=tick)
    if config.dataset == trained.dataset:
        check_unseen(folder, test)
    if iterations is None:
        iterations = config.options.get("iterations") if learner.method.iterative else 0
    chosen_on = None
    if iterations is None:
        validation, chosen_on = load_images(config, "val", strict=chosen.strict, bar=tick), "validation classes"
        found = embedded.vectors(learner.backbone, validation, tick)
        iterations = choose_iterations(learner.method, found, validation, protocol)
    vectors = embedded.vectors(learner.backbone, test, tick)
    ticking, begun = tick("episodes", protocol.splits * protocol.episodes), time.perf_counter()
    accuracy = evaluate(learner.method, vectors, test, protocol, iterations, progress=ticking)
    done = time.perf_counter()
    result = Result(
        method=method or config.method,
        title=learner.method.title,
        run=folder.name if is_shipped(folder) else str(folder),
        fingerprint=test.fingerprint(),
        **_settings(config, protocol),
        **_measurements(accuracy),
        iterations_chosen_on=chosen_on,
        trained=_trained(config, state),
        wall_seconds=round(done - started, 3),
        episodes_per_second=round(accuracy.episodes / (done - begun), 1),
    )
    if not is_shipped(folder):
        _keep(result, folder, iterations)
    return result


def _settings(config: RunConfig, protocol: Protocol) -> dict[str, Any]:
    """Data, protocol and PyTorch as fields of a result."""
    return {
        "dataset": config.dataset,
        "data_options": config.data_options,
        "protocol": protocol.to_json(),
        "seed": protocol.seed,
        "torch": torch.__version__,
    }


def _measurements(accuracy: Accuracy) -> dict[str, Any]:
    """An accuracy as fields of a result: of a single episode no interval is known."""
    known = math.isfinite(accuracy.interval)
    unknown = {} if known else {"interval": None, "intervals": None}
    return {"n": accuracy.episodes, **asdict(accuracy), **unknown}


def _keep(result: Result, folder: Path, iterations: int) -> None:
    """Write a result to the run's folder, under a name of its own for all that was asked for."""
    about = [result.protocol, result.method, result.dataset, iterations, result.fingerprint]
    kind = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]
    write_json(folder / "results" / f"{result.method}-{result.dataset}-{kind}.json", result.to_json())


def _trained(config: RunConfig, state: dict[str, Any]) -> Trained:
    return Trained(
        method=config.method,
        episodes=state["episode"],
        episodes_planned=config.episodes,
        spec=config.train.to_json(),
        val_accuracy=state["best"],
        seed=config.seed,
    )
