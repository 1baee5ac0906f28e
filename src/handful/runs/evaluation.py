"""Measure a run on test (or validation) classes: embed once, run the episodes of a protocol, keep the result."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..datasets import ImageSet, dataset_spec
from ..datasets.base import Bar, no_bar
from ..embedders.shipped import is_shipped
from ..io import refuse_links, write_json
from ..machine import compute_device
from .config import MOST_REFINEMENTS, MOST_SEED, RunConfig, check_range
from .episodes import Accuracy, Protocol, choose_iterations, embed, evaluate, stored
from .folder import check_unseen, load_images, load_run
from .learner import Learner
from .results import Result, Trained
from .tuning import TRIALS, Tuned, search, tunable, tune, with_multiplier
from .vectors import kept_vectors

MOST_TRIALS = 1000
MOST_EPISODES = 10**7  # of all splits of a protocol, whose accuracies are kept in memory


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

    def items(self, learner: Learner, images: ImageSet, bar: Bar) -> Tensor:
        """What the method of a model gets of each image: its vector, or the image itself if it adapts the backbone."""
        if learner.method.adapts_backbone:
            return stored(images, next(learner.backbone.parameters()).device)
        return self.vectors(learner.backbone, images, bar)

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
        split: ``test``, or ``val`` for a look at validation classes, which is not kept.
    """

    dataset: str | None = None
    data: str | None = None
    data_options: dict[str, Any] | None = None
    strict: bool = False
    split: str = "test"

    def apply(self, config: RunConfig) -> RunConfig:
        """The settings of a run with the data that it is measured on."""
        if self.dataset is not None and self.dataset != config.dataset:
            sized = {"image_size": config.image_size} if "image_size" in dataset_spec(self.dataset).options else {}
            config = replace(config, dataset=self.dataset, data=None, data_options=sized)
        options = {**config.data_options, **(self.data_options or {})}
        return replace(config, data=self.data or config.data, data_options=options)


@dataclass(frozen=True, kw_only=True)
class MethodChoice:
    """How the weights of a run are evaluated.

    Attributes:
        method: as another method that learns the same things, or that has nothing to learn.
        options: the backbone alone, with a method of these options that has nothing to learn.
        iterations: refinements; None chooses them on the validation classes.
        tuned: also choose the scale of the soft labels there (:func:`.tuning.tune`); for a method without one, its
            tunable options, by as many trials.
        trials: instead, compare so many sets of values of the method's tunable options there (:func:`.tuning.search`).
    """

    method: str | None = None
    options: dict[str, Any] | None = None
    iterations: int | None = None
    tuned: bool = False
    trials: int = 0

    def apply(
        self, learner: Learner, config: RunConfig, protocol: Protocol, items: Callable[[], tuple[Tensor, ImageSet]]
    ) -> tuple[Tuned, str | None]:
        """What is chosen for the learner's method, which gets it, and on what; ``items`` are of validation classes."""
        method, iterations, trials = learner.method, self.iterations, self.trials
        if self.tuned and not tunable(method) and method.tunables:  # TPN: as much effort for what it has instead
            trials = trials or TRIALS
        if trials:
            found = search(method, *items(), protocol, trials) if method.tunables else Tuned(0, None, 0, math.nan)
            learner.method = method.with_values(found.values)
            return found, "validation classes" if "iterations" in found.values else None
        if iterations is None:
            given = config.options.get("iterations") if self.options is None else self.options.get("iterations")
            iterations = given if method.iterative else 0
        chosen_on = "validation classes" if iterations is None else None
        if self.tuned and (iterations is None or tunable(method)):
            found = tune(method, *items(), protocol, iterations)
            learner.method = with_multiplier(method, found.cluster_multiplier)
            return found, chosen_on
        if iterations is None:
            iterations = choose_iterations(method, *items(), protocol)
        return Tuned(iterations, None, 0, math.nan), chosen_on


def evaluate_run(
    folder: Path,
    protocol: Protocol,
    *,
    device: str = "auto",
    bar: Bar | None = None,
    embedded: Embedded | None = None,
    **choice: Any,
) -> Result:
    """Measure a run folder on test classes; the result is returned, and kept in ``folder/results``
    unless the folder is that of a model that comes with the package, which is not written to, or ``split`` is ``val``.

    Args:
        folder: a run of ``handful train``, or a model (:func:`handful.embedders.shipped.model_folder`).
        protocol: what is measured.
        device: auto, cpu, cuda or mps.
        bar: ``bar(what, total)`` opens a progress bar and gives the function that moves it.
        embedded: keeps the vectors of the run's images for the next measurement of the same run.
        choice: of :class:`MethodChoice`: ``method``, ``options``, ``iterations``, ``tuned``, ``trials``; and of
            :class:`DataChoice`: ``dataset``, ``data``, ``data_options``, ``strict``, ``split``.
    """
    ours = {entry.name for entry in fields(MethodChoice)}
    wanted = MethodChoice(**{name: value for name, value in choice.items() if name in ours})
    chosen = DataChoice(**{name: value for name, value in choice.items() if name not in ours})
    _check_protocol(protocol, wanted.iterations)
    check_range("trials", wanted.trials, 0, MOST_TRIALS)
    refuse_links(folder, "results")
    trained, learner, state = load_run(folder, wanted.method, wanted.options)
    config = chosen.apply(trained)
    learner.to(compute_device(device))
    started, tick, embedded = time.perf_counter(), bar or no_bar, embedded or Embedded()
    test = load_images(config, chosen.split, strict=chosen.strict, bar=tick)
    if config.dataset == trained.dataset and chosen.split == "test":
        check_unseen(folder, test)

    def of_validation() -> tuple[Tensor, ImageSet]:
        validation = load_images(config, "val", strict=chosen.strict, bar=tick)
        return embedded.items(learner, validation, tick), validation

    choices, chosen_on = wanted.apply(learner, config, protocol, of_validation)
    vectors = embedded.items(learner, test, tick)
    ticking, begun = tick("episodes", protocol.splits * protocol.episodes), time.perf_counter()
    used = time.process_time()
    accuracy = evaluate(learner.method, vectors, test, protocol, choices.iterations, progress=ticking)
    done, used = time.perf_counter(), time.process_time() - used
    result = Result(
        method=wanted.method or config.method,
        title=learner.method.title,
        run=folder.name if is_shipped(folder) else str(folder),
        fingerprint=test.fingerprint(),
        split=chosen.split,
        **_settings(config, protocol),
        **_measurements(accuracy),
        iterations_chosen_on=chosen_on,
        cluster_multiplier=choices.cluster_multiplier,
        trials=choices.trials,
        values=choices.values,
        trained=_trained(config, state),
        wall_seconds=round(done - started, 3),
        episodes_per_second=round(accuracy.episodes / (done - begun), 1),
        processor_seconds=round(used, 4),
    )
    if not is_shipped(folder) and chosen.split == "test":
        _keep(result, folder, choices.iterations, wanted)
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


def _keep(result: Result, folder: Path, iterations: int, wanted: MethodChoice) -> None:
    """Write a result to the run's folder, under a name of its own for all that was asked for."""
    about = [result.protocol, result.method, result.dataset, iterations, result.fingerprint]
    about += ["tuned"] * wanted.tuned
    if wanted.trials or wanted.options is not None:
        about += [wanted.trials, wanted.options]
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
