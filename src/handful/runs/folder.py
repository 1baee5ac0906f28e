"""What a run folder holds beside its settings, and how it is read.

``config.json``, ``labelled.npz`` (which images counted as labelled), ``classes.json`` (what it has seen),
``metrics.jsonl``, ``checkpoint/`` and ``results/*.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoint import checksum, load_checkpoint
from ..datasets import ImageSet, dataset_spec, load_dataset
from ..datasets.base import Bar, no_bar
from ..embedders.backbones import feature_shape
from ..errors import HandfulError
from ..io import read_object
from ..methods import build_method, method_class, method_options
from .config import RunConfig, read_config
from .learner import Learner, build_learner, load_model


def load_run(
    folder: Path, method: str | None = None, options: dict[str, Any] | None = None
) -> tuple[RunConfig, Learner, dict[str, Any]]:
    """The settings, the best model so far, and the state of its checkpoint.

    ``method`` evaluates the run's weights as another method that learns the same things, as ``tapnet-semi`` does with
    those of ``tapnet``; or its backbone alone with a method that has nothing to learn, in its default form. With
    ``options``, the backbone alone is used in any case, with a method of these options.
    """
    config = read_config(folder)
    if not (folder / "checkpoint" / "best.json").exists():
        raise HandfulError(
            f"{folder} has no weights (checkpoint/best.json is missing): train it; if it was trained before, remove "
            "its folder 'checkpoint' and train it again"
        )
    tensors, state = load_checkpoint(folder / "checkpoint", "best")
    check_state(state, folder)
    learner = build_learner(config)
    if method is not None and (method != config.method or options is not None):
        free = method_class(method).training_free or options is not None
        # Options of the run's own method would be those of other formulas.
        shared = {k: v for k, v in config.options.items() if k in method_options(method)}
        shared = (options or {}) if free else shared
        shape = feature_shape(learner.backbone)
        other = build_method(method, learner.method.dim, config.train.ways, feature_shape=shape, **shared)
        ours, theirs = ({k: v.shape for k, v in m.state_dict().items()} for m in (learner.method, other))
        if free and options is not None and theirs:
            raise HandfulError(
                f"'{method}' has parameters to learn, with these options: train a run with --method {method}"
            )
        if free:
            tensors = {name: value for name, value in tensors.items() if not name.startswith("model.method.")}
        elif ours != theirs:
            raise HandfulError(
                f"{folder} was trained as '{config.method}', which does not learn what '{method}' needs: "
                f"train a run with --method {method}"
            )
        learner.use(other)
    load_model(learner, tensors, folder)
    return config, learner.eval(), state


def started_from(config: RunConfig, run: Path) -> RunConfig:
    """The settings of a run that starts from the backbone of another, which must be of the same kind.

    The whitening of that one stays behind if this run asks for none: it was not learned, and may be made anew.
    """
    other = read_config(run)
    if not config.backbone_options.get("whiten"):
        kept = {name: value for name, value in other.backbone_options.items() if name != "whiten"}
        other = replace(other, backbone_options=kept)
    for name in ("backbone", "backbone_options", "channels", "image_size"):
        ours, theirs = getattr(config, name), getattr(other, name)
        if ours != theirs:
            raise HandfulError(f"cannot start from {run}: it has {name.replace('_', ' ')} {theirs}, this run {ours}")
    seen_classes(run)  # without them nobody could tell which accuracies mean something
    return replace(config, start=str(run.resolve()), start_weights=checksum(run / "checkpoint", "best"))


def seen_classes(folder: Path) -> dict[str, list[str]]:
    """Names of the classes that a run has seen, by split; those that its start had seen are under ``start``.

    Raises:
        HandfulError: if nobody knows; a test on classes that the run may have seen would mean nothing.
    """
    path = folder / "classes.json"
    if not path.is_file():
        raise HandfulError(
            f"{folder} has no classes.json, which says what classes it has seen: put it back, or write it again with "
            "the run's 'handful train' command and --resume"
        )
    seen = read_object(path)
    for split in ("train", "val", *seen):
        names = seen.get(split)
        if not names or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise HandfulError(
                f"{path} is damaged: '{split}' should be a list of class names; remove it and write it again with the "
                "run's 'handful train' command and --resume"
            )
    return seen


def check_state(state: dict[str, Any], where: Path) -> None:
    """Whether the state of a checkpoint is that of a training."""
    kinds: dict[str, tuple[Any, Callable[[Any], bool]]] = {
        "episode": (int, lambda value: value >= 0),
        "loss_sum": (float | int, lambda value: abs(value) <= sys.float_info.max),
        "loss_steps": (int, lambda value: value >= 0),
        "best": (float | int, lambda value: -1 <= value <= 100),
        "best_episode": (int, lambda value: value >= 0),
    }
    for name, (kind, sound) in kinds.items():
        value = state.get(name)
        if not isinstance(value, kind) or isinstance(value, bool) or not sound(value):
            raise HandfulError(f"the checkpoint in {where} is damaged: its {name.replace('_', ' ')} is {value!r:.60}")


def load_images(config: RunConfig, split: str, *, strict: bool = False, bar: Bar = no_bar) -> ImageSet:
    """One split of a run's data set, which must fit its model."""

    def check(size: int, channels: int) -> None:
        if (size, channels) != (config.image_size, config.channels):
            raise HandfulError(
                f"the model takes {config.image_size} x {config.image_size} images of {config.channels} channels, "
                f"the data has {size} x {size} of {channels}"
            )

    # Before any image is decoded, as far as it is known by then.
    check(config.data_options.get("image_size", config.image_size), dataset_spec(config.dataset).channels)
    images = load_dataset(config.dataset, split, config.data, options=config.data_options, strict=strict, bar=bar)
    check(images.image_size, images.channels)
    return images


def check_unseen(folder: Path, test: ImageSet) -> None:
    """Whether a run has seen none of the test classes, in training or validation."""
    seen = {name for names in seen_classes(folder).values() for name in names}
    if shared := seen & set(test.class_names):
        raise HandfulError(
            f"class '{min(shared)}' is in the test split, but {folder} was trained or validated on it: the accuracy "
            "would mean nothing; test on the split of the run, or see 'handful data check'"
        )
