"""The settings of a run: ``config.json`` is all that is needed to build its model again.

What else a run folder holds is in :mod:`.folder`; the settings that are training options are in :mod:`.options`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from ..datasets import ImageSet
from ..errors import HandfulError
from ..io import read_object
from ..methods import METHODS, build_method, used_options
from ..sampling import EpisodeSpec
from .options import RunOptions, TrainingOptions, described

FORMAT = 1  # of config.json: raise it when an older handful would read it wrongly; a file that has none is of format 1
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
CHOICES = {  # of the training options that are words
    "precision": tuple(PRECISIONS),
    "optimiser": ("adam", "sgd"),
    "decay_form": ("l2", "decoupled", "constant"),
    "decay_on": ("all", "convolutions"),
}
SCHEDULES = ("step", "cosine", "constant", "halve:N")

# Far beyond any training, and below what would exhaust the memory or never end, as the bounds of the options are.
MOST_TRAINED = 10**9  # episodes
MOST_PIXELS = 4096  # a side of an image
MOST_OF_EPISODE = 10**6  # classes of an episode, or images of one of them
MOST_TOGETHER = 10**7  # images of the episodes that are drawn together: those of a step, or of a validation
MOST_REFINEMENTS = 1000
MOST_PARAMETERS = 10**9
MOST_SEED = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunOptions):
    """Everything that decides what a training run becomes; the training options among it are those of `RunOptions`.

    Attributes:
        method, options: the method and its options.
        dataset, data, data_options: the data set, where its files are (None for embedded data), how they are read.
        fingerprint: of the training images, to notice other data on resuming.
        labelled_ratio: share of each class whose labels may be used.
        backbone_options, channels, image_size: of the embedder.
        start, start_weights: the run folder whose backbone it starts from, and the checksum of its weights; None to
            start from random ones.
        train: what a training episode holds.
        validation: what a validation episode holds.
        episodes: training episodes in all.
        decay_at, decay: by the schedule "step", the rate is multiplied by ``decay`` after ``decay_at`` of the episodes.
        seed: fixes everything.
    """

    method: str
    dataset: str
    fingerprint: str
    labelled_ratio: float
    channels: int
    image_size: int
    train: EpisodeSpec
    validation: EpisodeSpec
    options: dict[str, Any] = field(default_factory=dict)
    data: str | None = None
    data_options: dict[str, Any] = field(default_factory=dict)
    backbone_options: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    start_weights: str | None = None
    episodes: int = 2000
    decay_at: float = 0.8
    decay: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("episodes", self.episodes, 1, MOST_TRAINED)
        for option in described(RunOptions):
            if option.help.most is not None:
                check_range(
                    option.name.replace("_", "-"), getattr(self, option.name), option.help.least or 0, option.help.most
                )
        check_range("the image size", self.image_size, 1, MOST_PIXELS)
        check_range("the seed", self.seed, 0, MOST_SEED)
        if not (0 < self.learning_rate <= sys.float_info.max):  # an int may be larger than any float
            raise HandfulError(f"the learning rate must be a number above 0, got {self.learning_rate!s:.40}")
        for name in ("weight_decay", "decay", "decay_at", "classifier_loss", "rotation_loss", "pseudo_label_loss"):
            if not (0 <= (value := getattr(self, name)) <= sys.float_info.max):
                raise HandfulError(f"the {name.replace('_', ' ')} must be a number from 0 up, got {value!s:.40}")
        if not 0 < self.labelled_ratio <= 1:
            raise HandfulError(f"the labelled ratio must be above 0 and at most 1, got {self.labelled_ratio!s:.40}")
        for name, words in CHOICES.items():
            if (word := getattr(self, name)) not in words:
                raise HandfulError(f"unknown {name.replace('_', ' ')} '{word}': choose one of {', '.join(words)}")
        self.halving()
        for spec, together in ((self.train, self.episodes_per_step), (self.validation, self.validation_episodes)):
            for entry in fields(spec):
                check_range(entry.name.replace("_", " "), getattr(spec, entry.name) or 0, 0, MOST_OF_EPISODE)
            if (images := together * images_of(spec)) > MOST_TOGETHER:
                raise HandfulError(
                    f"{together:,} episodes of {images_of(spec):,} images are {images:,} images at a time, more than "
                    f"{MOST_TOGETHER:,}: take fewer"
                )
        for name in ("iterations", "train_iterations"):
            check_range(name, self.options.get(name, 0), 0, MOST_REFINEMENTS)

    def halving(self) -> int | None:
        """After how many episodes the rate is halved, again and again, by the schedule "halve:N"; None by another."""
        if self.schedule in SCHEDULES[:-1]:
            return None
        kind, _, every = self.schedule.partition(":")
        if kind != "halve" or not (every.isascii() and every.isdigit() and 0 < int(every) <= MOST_TRAINED):
            raise HandfulError(f"unknown schedule '{self.schedule:.40}': choose one of {', '.join(SCHEDULES)}")
        return int(every)

    def to_json(self) -> dict[str, Any]:
        specs = {name: getattr(self, name).to_json() for name in ("train", "validation")}
        return {"format": FORMAT, **asdict(self), **specs}

    @classmethod
    def from_json(cls, content: dict[str, Any], path: Path) -> RunConfig:
        """Settings as `to_json` gives them; ``path`` is for messages."""
        made, content = content.get("format", 1), {k: v for k, v in content.items() if k != "format"}
        if not _is_of(made, int) or made < 1:
            raise HandfulError(f"{path} is not the settings of a run: its format is {made!r:.40}")
        if made > FORMAT:
            raise HandfulError(
                f"{path} was made by a newer handful (format {made!s:.20}, this one reads up to {FORMAT}): "
                "upgrade handful"
            )
        try:
            for kind, part in ((cls, content), (EpisodeSpec, content["train"]), (EpisodeSpec, content["validation"])):
                _check_kinds(kind, part)
            specs: dict[str, Any] = {name: EpisodeSpec(**content[name]) for name in ("train", "validation")}
            if (method := content["method"]) in METHODS:
                specs["options"] = used_options(method, content.get("options", {}))  # others were once accepted
            config = cls(**{**content, **specs})
        except (TypeError, KeyError, AttributeError, HandfulError) as error:
            raise HandfulError(f"{path} is not the settings of a run: {' '.join(str(error).split())}") from error
        return config

    def differences(self, other: RunConfig) -> list[str]:
        """Settings in which two runs differ, as ``name (ours, theirs)``; files may have moved, if they are the same."""
        names = (entry.name for entry in fields(self) if entry.name not in ("data", "start"))
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in names)
        return [f"{name} ({ours} here, {theirs} there)" for name, ours, theirs in pairs if ours != theirs]


def _check_kinds(cls: Any, content: dict[str, Any]) -> None:
    """Whether values from a file are of the kind that the fields of a dataclass say; before anything compares them."""
    hints = get_type_hints(cls)
    for entry in fields(cls):
        if entry.name not in content or hints[entry.name] is EpisodeSpec:
            continue
        value, kind = content[entry.name], hints[entry.name]
        if not _is_of(value, kind):
            raise HandfulError(f"{entry.name} should be {kind.__name__ if isinstance(kind, type) else kind}")
        if isinstance(value, str) and "\0" in value:
            raise HandfulError(f"{entry.name} holds a NUL character")


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a value that was read from JSON can be of this type; types that JSON does not know pass."""
    if get_origin(kind) in (Union, UnionType):
        return any(_is_of(value, one) for one in get_args(kind))
    kind = get_origin(kind) or kind
    if kind in (int, float):  # to Python a bool is an int, and JSON writes 1.0 as it likes
        return isinstance(value, int if kind is int else float | int) and not isinstance(value, bool)
    return not isinstance(kind, type) or kind is object or isinstance(value, kind)


@dataclass(frozen=True)
class TrainingData:
    """What a run is trained on.

    Attributes:
        dataset, data, data_options: the data set, where its files are (None for embedded data), how they are read.
        images: its training images, for their size, their classes and their fingerprint.
        labelled_ratio: share of each class whose labels may be used.
    """

    dataset: str
    images: ImageSet
    labelled_ratio: float
    data: str | None = None
    data_options: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        return self.images.fingerprint()


def build_config(
    data: TrainingData,
    method: str,
    options: dict[str, Any],
    train: EpisodeSpec,
    validation: EpisodeSpec,
    training: TrainingOptions,
    *,
    episodes: int,
    seed: int = 0,
) -> RunConfig:
    """The settings of a run. Whoever trains makes them here.

    Args:
        data: what it is trained on.
        method, options: the method and its options.
        train: what a training episode holds, before it is made to suit the method (:func:`training_spec`).
        validation: what a validation episode holds.
        training: the training options.
        episodes: training episodes in all.
        seed: fixes everything.
    """
    return RunConfig(
        method=method,
        options=options,
        dataset=data.dataset,
        data=data.data,
        data_options=data.data_options,
        fingerprint=data.fingerprint,
        labelled_ratio=data.labelled_ratio,
        channels=data.images.channels,
        image_size=data.images.image_size,
        backbone_options=training.backbone_options(),
        train=training_spec(method, options, train, len(data.images.class_names)),
        validation=validation,
        episodes=episodes,
        seed=seed,
        **training.run_options(),
    )


def images_of(spec: EpisodeSpec) -> int:
    """How many images an episode shows."""
    unlabelled = spec.ways * spec.unlabelled + spec.distractor_ways * spec.distractors
    total = spec.realistic_total if spec.realistic_total is not None else unlabelled
    return spec.ways * (spec.shots + spec.queries) + total


def check_range(name: str, value: Any, least: int, most: int) -> None:
    if value < least:
        raise HandfulError(f"{name} must be at least {least}, got {value!s:.40}")
    if not value <= most:
        raise HandfulError(f"{name} must be at most {most:,}, got {value!s:.40}")


def training_spec(method: str, options: dict[str, Any], spec: EpisodeSpec, classes: int) -> EpisodeSpec:
    """A training episode as a method needs it: without unlabelled images, or with two images of each class there is."""
    # What else there may be among the options may not suit these sizes.
    built = build_method(method, dim=64, ways=2, **{k: v for k, v in options.items() if k == "train_iterations"})
    if not built.trains_on_unlabelled:
        spec = replace(spec, unlabelled=0, distractor_ways=0, distractors=0, realistic_total=None, realistic_share=0.0)
    return replace(spec, ways=classes, shots=1, queries=1) if built.in_order else spec


def read_config(folder: Path) -> RunConfig:
    """The settings of a run folder, or a sentence that says it is not one."""
    path = folder / "config.json"
    if not path.is_file():
        raise HandfulError(f"{folder} is not a run folder: it has no config.json")
    return RunConfig.from_json(read_object(path), path)
